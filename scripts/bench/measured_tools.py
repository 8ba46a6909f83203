"""The tool servers that `mcp_docker` measures: how each is started, the data that it needs, and the call that is made of it."""

import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sampler.mcp_docker.tools.search import index

LIGHT = Path(__file__).parent / "light_tool_server.py"
NAMES = ("light", "calculator", "python", "shell", "files", "sql", "search", "fetch")
_ROWS = 10_000
_DOCUMENTS = 2_000
_PAGE = b"<html><body><h1>Page</h1>" + b"<p>Forty-two is the answer to that question.</p>" * 50 + b"</body></html>"


@dataclass(frozen=True)
class MeasuredTool:
    """`says`: what the text of every answer holds. `flags`: of the gateway."""

    arguments: tuple[str, ...]
    call: str
    given: Mapping[str, Any]
    says: str
    flags: tuple[str, ...] = ()

    @property
    def servers(self) -> dict[str, Any]:
        """The mcpServers JSON."""
        return {"mcpServers": {"tool": {"command": sys.executable, "args": list(self.arguments)}}}


@contextlib.contextmanager
def measured_tool(name: str, folder: Path) -> Iterator[MeasuredTool]:
    """`folder`: for its data. Sessions have users of their own, who read it."""
    folder.chmod(0o755)
    with _MAKERS[name](folder) as tool:
        yield tool


def _bundled(
    name: str, call: str, given: Mapping[str, Any], says: str, *arguments: str, flags: tuple[str, ...] = ()
) -> MeasuredTool:
    return MeasuredTool(("-m", f"sampler.mcp_docker.tools.{name}", *arguments), call, given, says, flags)


@contextlib.contextmanager
def _light(folder: Path) -> Iterator[MeasuredTool]:
    yield MeasuredTool(("-I", "-S", str(LIGHT)), "calculate", {"expression": "6*7"}, "")


@contextlib.contextmanager
def _calculator(folder: Path) -> Iterator[MeasuredTool]:
    yield _bundled("calculator", "calculate", {"expression": "6*7"}, "42")


@contextlib.contextmanager
def _python(folder: Path) -> Iterator[MeasuredTool]:
    yield _bundled("python", "run", {"code": "6 * 7"}, "42")


@contextlib.contextmanager
def _shell(folder: Path) -> Iterator[MeasuredTool]:
    yield _bundled("shell", "run", {"command": "echo $((6 * 7))"}, "42")


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[MeasuredTool]:
    yield _bundled("files", "write", {"path": "notes.txt", "content": "forty-two\n" * 100}, "notes.txt")


@contextlib.contextmanager
def _sql(folder: Path) -> Iterator[MeasuredTool]:
    path = folder / "orders.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount REAL)")
        rows = ((number, f"customer {number % 97}", number / 7) for number in range(_ROWS))
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    path.chmod(0o644)
    given = {"statement": "SELECT customer, count(*), sum(amount) FROM orders WHERE id < 500 GROUP BY customer LIMIT 5"}
    yield _bundled("sql", "query", given, "customer", str(path), flags=_readable(folder))


@contextlib.contextmanager
def _search(folder: Path) -> Iterator[MeasuredTool]:
    source, corpus = folder / "documents.jsonl", folder / "corpus.sqlite"
    words = ("river", "engine", "glacier", "harbour", "violin", "copper", "orchard", "lantern", "saddle", "winter")
    with source.open("w", encoding="utf-8") as lines:
        for number in range(_DOCUMENTS):
            text = " ".join(words[(number * step + step) % len(words)] for step in range(1, 120))
            lines.write(json.dumps({"id": f"d{number}", "title": f"document {number}", "text": text}) + "\n")
    index(corpus, [source])
    corpus.chmod(0o644)
    yield _bundled("search", "search", {"query": "glacier 42"}, "d42", str(corpus), flags=_readable(folder))


@contextlib.contextmanager
def _fetch(folder: Path) -> Iterator[MeasuredTool]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"127.0.0.1:{server.server_port}"
    given = {"url": f"http://{host}/page"}
    try:
        yield _bundled(
            *("fetch", "fetch", given, "Forty-two"),
            *("--allow", host, "--private", host),
            flags=("--network_servers", '["tool"]'),
        )
    finally:
        server.shutdown()
        server.server_close()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line for each call would be part of what is measured."""


def _readable(folder: Path) -> tuple[str, ...]:
    return ("--readable", json.dumps([str(Path(__file__).resolve().parents[2]), str(folder)]))


_MAKERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[MeasuredTool]]] = {
    "light": _light,
    "calculator": _calculator,
    "python": _python,
    "shell": _shell,
    "files": _files,
    "sql": _sql,
    "search": _search,
    "fetch": _fetch,
}
