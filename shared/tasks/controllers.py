"""Makes a task file of what an environment's controller lists: `agentrl://host:5020/dbbench-std`.

Each index is a task of the sampler `environment`; its id is TASK-INDEX, so that a repeated import changes nothing.
"""

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shared.errors import ConfigError
from shared.files.private_file import write_private
from shared.names import shortened
from shared.outgoing import opener_for, through_proxy
from shared.outside_text import clipped, text_of

SCHEME = "agentrl"
CONTROLLER_S = 60.0
MAX_LIST_BYTES = 64 << 20
ANY_TASK = -1  # in a list: the environment takes tasks that are not listed
MAX_TOLD_CHARS = 300


def write_listed_tasks(source: str, folder: Path, token: str | None = None) -> Path:
    """The task file, in `folder`. `token`: a Bearer token for the controller. Raises ConfigError."""
    address, name = _parts(source)
    indices = _listed(f"http://{address}/api/get_indices?name={quote(name, safe='')}", name, token)
    path = folder / "listed.jsonl"
    lines = [json.dumps(_line(name, index), ensure_ascii=False) + "\n" for index in indices]
    write_private(path, "".join(lines))
    return path


def _parts(source: str) -> tuple[str, str]:
    """(host:port, task)."""
    parts = urlsplit(source)
    name = unquote(parts.path.strip("/"))
    if parts.scheme != SCHEME or not parts.netloc or not name:
        raise ConfigError(f"--from is {shortened(source)}; expected {SCHEME}://HOST:PORT/TASK")
    return parts.netloc, name


def _listed(url: str, name: str, token: str | None) -> list[Any]:
    try:
        request = urllib.request.Request(url)
        if token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {token}")  # another host must not see it
        with opener_for(url).open(request, timeout=CONTROLLER_S) as response:
            body = response.read(MAX_LIST_BYTES + 1)
    except urllib.error.HTTPError as exc:
        answer = clipped(" ".join(text_of(exc.read(4000)).split()), MAX_TOLD_CHARS)
        raise ConfigError(
            f"GET {url}: HTTP {exc.code}: {answer}{through_proxy(url)}; expected the indices of {name}"
        ) from exc
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise ConfigError(
            f"GET {url}: {exc}{through_proxy(url)}; expected a controller, or python -m sampler.environments, there"
        ) from exc
    if len(body) > MAX_LIST_BYTES:
        raise ConfigError(f"GET {url}: more than {MAX_LIST_BYTES >> 20} MB; expected a list of indices")
    try:
        values = json.loads(body)
    except ValueError as exc:
        raise ConfigError(f"GET {url}: not JSON ({exc}); expected a list of indices") from exc
    if not (isinstance(values, list) and all(isinstance(one, int | str) for one in values)):
        raise ConfigError(f"GET {url}: {shortened(values)}; expected a list of numbers and texts")
    listed = [index for index in values if index != ANY_TASK]
    if not listed:
        raise ConfigError(f"GET {url}: no index is listed; write a task file with metadata.custom_task instead")
    return listed


def _line(name: str, index: Any) -> dict[str, Any]:
    return {
        "id": f"{name}-{index}",
        "source": name,
        "query": f"{name} {index}",
        "sampler": "environment",
        "metadata": {"environment": name, "index": index},
    }
