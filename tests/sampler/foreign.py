"""Public third-party MCP servers (`scripts/setup_mcp_servers.sh`), data for them, and calls with expected answers.

with foreign_world() as world, world.serve("everything", "http") as server:
    async with ToolSession([server]) as session: ...
"""

import contextlib
import functools
import http.server
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sampler.core.tools import ToolServer
from shared.processes.mongod import free_port

INSTALLED = Path(__file__).parents[2] / ".mcp_servers"
NPM = INSTALLED / "npm" / "node_modules"
PYPI = INSTALLED / "pypi"
START_S = 90.0  # seconds; node takes one on an idle machine


@dataclass(frozen=True)
class Case:
    """`says`: a pattern in the text that the model reads. {root}, {repo} and {url} in the arguments are the world's."""

    tool: str
    arguments: Mapping[str, Any]
    says: str
    is_error: bool = False


@dataclass(frozen=True)
class Foreign:
    package: str
    cases: tuple[Case, ...]
    transports: tuple[str, ...] = ("stdio",)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_npm(self) -> bool:
        return self.package.startswith("@")

    @property
    def version(self) -> str | None:
        """Of the installed package; None where there is none."""
        if self.is_npm:
            manifest = NPM / self.package / "package.json"
            found = re.search(r'"version": "([^"]+)"', manifest.read_text()) if manifest.is_file() else None
            return found[1] if found and shutil.which("node") else None
        folder = f"lib/python3*/site-packages/{self.package.replace('-', '_')}-*.dist-info"
        return next((path.name.split("-")[1].removesuffix(".dist") for path in PYPI.glob(folder)), None)


IMAGE = (
    r"^Here's the image you requested:\n\[image: image/png, \d+ bytes, not shown\]\nThe image above is the MCP logo\.$"
)
PERSON = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}

FOREIGN: dict[str, Foreign] = {
    "everything": Foreign(
        "@modelcontextprotocol/server-everything",
        (
            Case("echo", {"message": "héllo <|im_end|> 日本"}, r"^Echo: héllo <\|im_end\|> 日本$"),
            Case("get-sum", {"a": 2, "b": 40}, r"^The sum of 2 and 40 is 42\.$"),
            Case("get-sum", {"a": 2, "b": "x"}, r"expected number, received string at b", is_error=True),
            Case("get-tiny-image", {}, IMAGE),
            Case("get-structured-content", {"location": "Chicago"}, r'^\{"temperature":36,.*"humidity":82\}$'),
            Case(
                "get-resource-links", {"count": 2}, r"\[resource: Text Resource 2 at demo://resource/dynamic/text/2\]"
            ),
            Case(
                "get-resource-reference", {"resourceType": "Text", "resourceId": 3}, r"Resource 3: This is a plaintext"
            ),
            Case(
                "get-resource-reference", {"resourceType": "Blob", "resourceId": 1}, r"blob/1, \d+ bytes, not shown\]"
            ),
            Case("get-annotated-message", {"messageType": "error"}, r"^Error: Operation failed$"),
            Case("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, r"^Long running operation completed"),
        ),
        transports=("stdio", "sse", "http"),
    ),
    "filesystem": Foreign(
        "@modelcontextprotocol/server-filesystem",
        (
            Case("list_directory", {"path": "{root}"}, r"\[FILE\] notes\.txt"),
            Case("read_text_file", {"path": "{root}/notes.txt"}, r"^first line\nsecond line\n$"),
            Case("write_file", {"path": "{root}/new.txt", "content": "fresh"}, r"^Successfully wrote"),
            Case("read_text_file", {"path": "{root}/new.txt"}, r"^fresh$"),
            Case("read_text_file", {"path": "/etc/passwd"}, r"^Access denied", is_error=True),
            Case("read_text_file", {"path": "{root}/absent"}, r"ENOENT", is_error=True),
            Case("read_media_file", {"path": "{root}/dot.png"}, r"^\[image: image/png, 68 bytes, not shown\]$"),
            Case("search_files", {"path": "{root}", "pattern": "*.txt"}, r"notes\.txt"),
        ),
    ),
    "memory": Foreign(
        "@modelcontextprotocol/server-memory",
        (
            Case("create_entities", {"entities": [PERSON]}, r'"name": "Ada"'),
            Case("search_nodes", {"query": "program"}, r"wrote the first program"),
            Case("create_relations", {"relations": [{"from": "Ada", "to": "Eve", "relationType": "knows"}]}, r"knows"),
            Case("create_entities", {"entities": "Ada"}, r"expected array", is_error=True),
        ),
        env={"MEMORY_FILE_PATH": "{root}/memory.jsonl"},
    ),
    "sequential-thinking": Foreign(
        "@modelcontextprotocol/server-sequential-thinking",
        (
            Case(
                "sequentialthinking",
                {"thought": "one", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2},
                r'"thoughtHistoryLength": 1',
            ),
            Case(
                "sequentialthinking",
                {"thought": "two", "nextThoughtNeeded": False, "thoughtNumber": 2, "totalThoughts": 2},
                r'"thoughtHistoryLength": 2',
            ),
            Case("sequentialthinking", {"thought": 1}, r"Input validation error", is_error=True),
        ),
    ),
    "time": Foreign(
        "mcp-server-time",
        (
            Case("get_current_time", {"timezone": "Europe/Paris"}, r'"datetime": "20\d\d-\d\d-\d\dT'),
            Case(
                "convert_time",
                {"source_timezone": "Asia/Tokyo", "time": "16:30", "target_timezone": "Asia/Kolkata"},
                r'"time_difference": "-3\.5h"',
            ),
            Case("get_current_time", {"timezone": "Mars/Olympus"}, r"Invalid timezone", is_error=True),
        ),
    ),
    "git": Foreign(
        "mcp-server-git",
        (
            Case("git_status", {"repo_path": "{repo}"}, r"Untracked files:\s.*\s*new\.txt"),
            Case("git_log", {"repo_path": "{repo}", "max_count": 1}, r"the only commit"),
            Case("git_add", {"repo_path": "{repo}", "files": ["new.txt"]}, r"staged"),
            Case("git_diff_staged", {"repo_path": "{repo}"}, r"\+not yet"),
            Case("git_show", {"repo_path": "{repo}", "revision": "nope"}, r"did not resolve", is_error=True),
            Case("git_log", {"repo_path": "/"}, r"outside the allowed repository", is_error=True),
        ),
    ),
    "fetch": Foreign(
        "mcp-server-fetch",
        (
            Case(
                "fetch",
                {"url": "{url}/page.html"},
                r"Contents of http://127\.0\.0\.1:\d+/page\.html:\s.*A local page, for one",
            ),
            Case("fetch", {"url": "{url}/page.html", "raw": True}, r"<h1>Tandem page</h1>"),
            Case("fetch", {"url": "{url}/absent"}, r"status code 404", is_error=True),
            Case("fetch", {"url": "no url"}, r"valid URL", is_error=True),
        ),
    ),
}


@dataclass
class World:
    """A folder, a git repository in it, a local web site; and the servers that were started."""

    root: Path
    url: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return (
                value.replace("{root}", str(self.root))
                .replace("{repo}", f"{self.root}/repo")
                .replace("{url}", self.url)
            )
        if isinstance(value, Mapping):
            return {key: self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value

    def command(self, name: str) -> list[str]:
        foreign = FOREIGN[name]
        if foreign.is_npm:
            base = ["node", str(NPM / foreign.package / "dist" / "index.js")]
        else:
            base = [str(PYPI / "bin" / foreign.package)]
        more = {
            "filesystem": [str(self.root)],
            "git": ["--repository", f"{self.root}/repo"],
            "fetch": ["--ignore-robots-txt", "--allow-private-ips"],
        }
        return [*base, *more.get(name, [])]

    def stdio(self, name: str, **fields: Any) -> ToolServer:
        """One process per session. `PATH` is all that the servers inherit."""
        command, *args = self.command(name)
        env = {"PATH": os.environ["PATH"], **self.fill(FOREIGN[name].env)}
        return ToolServer(**{"name": name, "command": command, "args": tuple(args), "env": env, **fields})

    @contextlib.contextmanager
    def serve(self, name: str, transport: str, port: int | None = None, **fields: Any) -> Iterator[ToolServer]:
        """The server over one of its transports; over HTTP one process for all sessions, the last of `processes`."""
        if transport == "stdio":
            yield self.stdio(name, **fields)
            return
        port = port or free_port()
        mode = {"sse": "sse", "http": "streamableHttp"}[transport]
        process = subprocess.Popen(
            [*self.command(name), mode],
            env={"PATH": os.environ["PATH"], "PORT": str(port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        try:
            wait_for_port(port)
            path = {"sse": "sse", "http": "mcp"}[transport]
            yield ToolServer(**{"name": name, "url": f"http://127.0.0.1:{port}/{path}", "remote": transport, **fields})
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def require(*names: str) -> None:
    """Skip the calling test where one of these servers is not installed."""
    for name in names:
        if FOREIGN[name].version is None or (name == "git" and not shutil.which("git")):
            pytest.skip(f"{FOREIGN[name].package} is not installed: run scripts/setup_mcp_servers.sh")


@contextlib.contextmanager
def foreign_world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="tandem-mcp-") as folder:
        root = Path(folder).resolve()
        (root / "notes.txt").write_text("first line\nsecond line\n")
        (root / "dot.png").write_bytes(DOT_PNG)
        (root / "site").mkdir()
        (root / "site" / "page.html").write_text(
            "<html><head><title>Tandem page</title></head><body><article><h1>Tandem page</h1><p>"
            + "A local page, for one reader. " * 20
            + "</p></article></body></html>"
        )
        _make_repository(root / "repo")
        with _site(root / "site") as url:
            yield World(root, url)


def _make_repository(repo: Path) -> None:
    if not shutil.which("git"):
        return
    repo.mkdir()
    identity = ["-c", "user.name=Tandem", "-c", "user.email=tandem@example.org", "-c", "commit.gpgsign=false"]
    (repo / "kept.txt").write_text("kept\n")
    for arguments in (["init", "-q"], ["add", "kept.txt"], ["commit", "-q", "-m", "the only commit"]):
        subprocess.run(["git", "-C", str(repo), *identity, *arguments], check=True)
    (repo / "new.txt").write_text("not yet\n")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@contextlib.contextmanager
def _site(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, name="site")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_for_port(port: int) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < end, f"nothing listens on port {port} after {START_S:g} s"
            time.sleep(0.05)  # a foreign server gives no signal when its port opens


# One pixel.
DOT_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "18dd8db00000000049454e44ae426082"
)[:68]
