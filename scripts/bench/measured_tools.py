"""The tool servers that `mcp_docker` measures: how each is started, the data that it needs, and the call that is made of it."""

import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sampler.mcp_docker.tools.search import index
from scripts.bench.processes import ROOT

LIGHT = Path(__file__).parent / "light_tool_server.py"
NAMES = ("light", "calculator", "python", "shell", "files", "sql", "search", "fetch")
_SUMS = "SELECT customer, count(*), sum(amount) FROM orders WHERE id < 500 GROUP BY customer LIMIT 5"
_WORDS = ("river", "engine", "glacier", "harbour", "violin", "copper", "orchard", "lantern", "saddle", "winter")
_PAGE = b"<html><body><h1>Page</h1>" + b"<p>Forty-two is the answer to that question.</p>" * 50 + b"</body></html>"


@dataclass(frozen=True)
class MeasuredTool:
    """`command`: of the server, for Python. `expected`: what the text of every answer contains. `flags`: of the gateway."""

    command: tuple[str, ...]
    call: str
    arguments: Mapping[str, Any]
    expected: str
    flags: tuple[str, ...] = ()

    @property
    def servers(self) -> dict[str, Any]:
        """The mcpServers JSON."""
        return {"mcpServers": {"tool": {"command": sys.executable, "args": list(self.command)}}}


@contextlib.contextmanager
def measured_tool(name: str, folder: Path) -> Iterator[MeasuredTool]:
    """`folder`: for its data. Sessions have users of their own, who read it."""
    folder.chmod(0o755)
    if name == "fetch":
        with _page_server() as host:
            yield _bundled(
                name, "fetch", {"url": f"http://{host}/page"}, "Forty-two", "--allow", host, "--private", host,
                flags=("--network_servers", '["tool"]'),
            )  # fmt: skip
    else:
        yield _tool(name, folder)


def _tool(name: str, folder: Path) -> MeasuredTool:
    readable = ("--readable", json.dumps([str(ROOT), str(folder)]))
    match name:
        case "light":
            return MeasuredTool(("-I", "-S", str(LIGHT)), "calculate", {"expression": "6*7"}, "")
        case "calculator":
            return _bundled(name, "calculate", {"expression": "6*7"}, "42")
        case "python":
            return _bundled(name, "run", {"code": "6 * 7"}, "42")
        case "shell":
            return _bundled(name, "run", {"command": "echo $((6 * 7))"}, "42")
        case "files":
            return _bundled(name, "write", {"path": "notes.txt", "content": "forty-two\n" * 100}, "notes.txt")
        case "sql":
            return _bundled(name, "query", {"statement": _SUMS}, "customer", _orders(folder), flags=readable)
        case _:
            return _bundled(name, "search", {"query": "glacier 42"}, "d42", _corpus(folder), flags=readable)


def _bundled(
    name: str, call: str, arguments: Mapping[str, Any], expected: str, *command: str, flags: tuple[str, ...] = ()
) -> MeasuredTool:
    return MeasuredTool(("-m", f"sampler.mcp_docker.tools.{name}", *command), call, arguments, expected, flags)


def _orders(folder: Path) -> str:
    path = folder / "orders.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount REAL)")
        rows = ((number, f"customer {number % 97}", number / 7) for number in range(10_000))
        database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    path.chmod(0o644)
    return str(path)


def _corpus(folder: Path) -> str:
    source, corpus = folder / "documents.jsonl", folder / "corpus.sqlite"
    with source.open("w", encoding="utf-8") as lines:
        for number in range(2_000):
            text = " ".join(_WORDS[(number * step + step) % len(_WORDS)] for step in range(1, 120))
            lines.write(json.dumps({"id": f"d{number}", "title": f"document {number}", "text": text}) + "\n")
    index(corpus, [source])
    corpus.chmod(0o644)
    return str(corpus)


@contextlib.contextmanager
def _page_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
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
