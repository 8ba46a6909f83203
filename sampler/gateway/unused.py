"""What of a request changes nothing: its names, for the documents, the metrics, the answer's header and the log.

A client chooses the names, so they are bounded: in length, in characters, and in number per request, attempt and process.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence

from sampler.core.episode.dispatch import sampling_params
from sampler.core.settings.core_config import CoreConfig
from sampler.gateway.exchange import ChatRequest, GatewayError, Problem
from shared.documents import Task
from shared.outside_text import visible
from shared.truncation import Truncation

log = logging.getLogger(__name__)

HEADER = "x-tandem-unused"
MAX_NAMES = 64  # of one request, and different ones of one attempt
MAX_NAME_CHARS = 100
MAX_HEADER_CHARS = 2000
MAX_LOGGED = 1000  # different names, by one process
MORE = "more"
_PREFIX = "overridden_"
_POSITION = re.compile(r"\[\]")
_NOT_IN_METRICS = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_HEADERS = re.compile(r"[^!-~]")
_logged: set[str] = set()


def unused_names(request: ChatRequest, config: CoreConfig, task: Task) -> list[str]:
    """Paths of what the request has and this gateway does not use. A sampling parameter is used if it is the one that samples."""
    ours = sampling_params(config, task, ())
    ours |= Truncation.of(ours).model_dump()
    others = [path for (path, name), value in request.distribution.items() if _plain(name, value) != ours[name]]
    paths = [*request.unused, *others]
    names = sorted({visible(name)[:MAX_NAME_CHARS] for name in paths})
    return names if len(names) <= MAX_NAMES else [*names[: MAX_NAMES - 1], MORE]


def _plain(name: str, value: float) -> float:
    return 0 if (name, value) == ("top_k", -1) else value


def admitted(names: list[str], *, refused: bool) -> list[str]:
    """The names, which are logged. Raises GatewayError if they are `refused`."""
    if names and refused:
        raise GatewayError(
            Problem.INVALID,
            f"{', '.join(names)}: refused, because it changes nothing here: replies are sampled from the policy itself; leave it "
            "out, or set agent_parameters to override",
        )
    log_once(names)
    return names


def count(counts: Counter[str], names: Sequence[str]) -> None:
    """In `counts` of one attempt, as parts of metrics' names: `overridden_text-verbosity`."""
    for name in names:
        key = _PREFIX + _NOT_IN_METRICS.sub("_", _POSITION.sub("", name).replace(".", "-"))
        is_known = key in counts or sum(one.startswith(_PREFIX) for one in counts) < MAX_NAMES
        counts[key if is_known else _PREFIX + MORE] += 1


def log_once(names: Sequence[str]) -> None:
    for name in names:
        if name not in _logged and len(_logged) < MAX_LOGGED:
            _logged.add(name)
            log.warning("not used, in requests of agents: %s (agent_parameters: refuse answers them with 400)", name)


def header_of(names: Sequence[str]) -> dict[str, str]:
    """A header holds visible ASCII, and no blank at its ends: anything else would end the connection. Other characters of a name
    are escapes (`a\\x0ab`)."""
    text = ", ".join(_NOT_IN_HEADERS.sub(_escape, name) for name in names)[:MAX_HEADER_CHARS].rstrip(", ")
    return {HEADER: text} if text else {}


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
