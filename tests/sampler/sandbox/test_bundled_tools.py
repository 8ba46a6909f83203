"""The tools that come with MCP-Docker: what each answers, and what each refuses."""

import asyncio
import contextlib
import http.server
import json
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters

from sampler.mcp_docker.tools import fetch, files, search, shell, sql
from sampler.mcp_docker.tools.bounded_output import BoundedOutput
from sampler.mcp_docker.tools.calculator import CalculatorArguments, calculate, evaluate
from sampler.mcp_docker.tools.python import PythonArguments, PythonNotebook
from sampler.mcp_docker.tools.serving import ToolArguments, ToolRefusal
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
TOOLS = "sampler.mcp_docker.tools"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---------------------------------------------------------------- as servers, by the SDK's client


def corpus(folder: Path) -> Path:
    lines = folder / "corpus.jsonl"
    lines.write_text(
        '{"id": "a", "title": "Rivers", "text": "The Danube flows through ten countries."}\n'
        '{"id": "b", "title": "Lakes", "text": "Lake Baikal is the deepest; the Danube does not reach it."}\n'
    )
    assert search.index(folder / "corpus.sqlite", [lines]) == 2
    return folder / "corpus.sqlite"


def database(folder: Path) -> Path:
    path = folder / "data.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cities (name TEXT, people INT)")
        connection.executemany("INSERT INTO cities VALUES (?, ?)", [("Ulm", 126_000), ("Linz", 206_000)])
    connection.close()
    return path


async def called(name: str, arguments: list[str], cwd: Path, tool: str, **values: Any) -> str:
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", f"{TOOLS}.{name}", *arguments], env=environment, cwd=cwd
    )
    async with Client(server, read_timeout_seconds=120) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert listed[tool].description
        assert (await client.call_tool("absent", {})).is_error
        assert (await client.call_tool(tool, {"no_such_argument": 1})).is_error
        result = await client.call_tool(tool, values)
        assert not result.is_error, result
        return result.content[0].text  # type: ignore[union-attr]


async def test_every_tool_serves_the_sdks_client(tmp_path: Path) -> None:
    answers = await asyncio.gather(
        called("python", [], tmp_path, "run", code="6 * 7"),
        called("shell", [], tmp_path, "run", command="echo $((6 * 7))"),
        called("files", [str(tmp_path)], tmp_path, "list"),
        called("search", [str(corpus(tmp_path))], tmp_path, "search", query="deepest lake"),
        called("calculator", [], tmp_path, "calculate", expression="1/3 + 1/6"),
        called("sql", [str(database(tmp_path))], tmp_path, "query", statement="SELECT sum(people) FROM cities"),
    )
    assert answers[0] == "42\n"
    assert answers[1] == "42\n\n[exit status 0]"
    assert "corpus.sqlite" in answers[2]
    assert answers[3].startswith("[b] Lakes")
    assert answers[4] == "1/2 = 0.5"
    assert answers[5] == "sum(people)\n332000\n[1 rows]"


def test_the_example_of_an_mcp_servers_file_has_every_tool() -> None:
    servers = json.loads((ROOT / "assets" / "mcp_docker.json").read_text())["mcpServers"]
    modules = {
        path.stem for path in (ROOT / "sampler/mcp_docker/tools").glob("*.py") if "tool_server(" in path.read_text()
    }
    assert {server["args"][1].rpartition(".")[2] for server in servers.values()} == modules - {"__init__"}


# ---------------------------------------------------------------- python


async def test_python_keeps_its_state_and_shows_values_output_and_errors(folder: Path) -> None:
    notebook = PythonNotebook()
    try:
        assert await notebook.execute(PythonArguments(code="import math\nx = 20\nx + 1")) == "21\n"
        assert (
            await notebook.execute(PythonArguments(code="print(x * 2); open('f', 'w').write('a') and None")) == "40\n"
        )
        assert (folder / "f").read_text() == "a"
        shown = await notebook.execute(PythonArguments(code="def f():\n    return 1 / 0\nf()"))
        assert "ZeroDivisionError" in shown
        assert "python_worker" not in shown, "the traceback is the code's own"
        assert "SyntaxError" in await notebook.execute(PythonArguments(code="x ="))
        assert "SystemExit: 3" in await notebook.execute(PythonArguments(code="import sys; sys.exit(3)"))
        assert (
            await notebook.execute(PythonArguments(code="import subprocess; subprocess.run(['echo', 'child']); x"))
            != ""
        )
        assert await notebook.restart(ToolArguments()) == "the state is empty"
        assert "NameError" in await notebook.execute(PythonArguments(code="x"))
    finally:
        await notebook.restart(ToolArguments())


@pytest.mark.parametrize(
    ("code", "end", "kept"),
    [
        ("while True: pass", "interrupted", True),
        ("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "killed", False),
        ("import time\nwhile True:\n  try:\n    time.sleep(60)\n  except BaseException: pass", "killed", False),
        ("import os; os._exit(3)", "ended (status 3)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended (signal 9)", False),
    ],
)
async def test_python_code_that_does_not_return_is_ended(folder: Path, code: str, end: str, kept: bool) -> None:
    notebook = PythonNotebook()
    try:
        await notebook.execute(PythonArguments(code="x = 1"))
        assert end in await notebook.execute(PythonArguments(code=code, timeout_s=0.3))
        assert ("NameError" in await notebook.execute(PythonArguments(code="x"))) != kept
    finally:
        await notebook.restart(ToolArguments())


async def test_much_output_is_bounded_with_its_beginning_and_end(folder: Path) -> None:
    notebook = PythonNotebook()
    try:
        shown = await notebook.execute(PythonArguments(code="print('begin'); print('x' * 30_000_000); print('end')"))
    finally:
        await notebook.restart(ToolArguments())
    assert shown.startswith("begin\n")
    assert shown.endswith("end\n")
    assert len(shown) < 21_000
    shown = await shell.run_command(shell.ShellArguments(command="head -c 20000000 /dev/zero | tr '\\0' y; echo end"))
    assert shown.endswith("end\n\n[exit status 0]")
    assert len(shown) < 21_000


@given(st.lists(st.binary(max_size=50)), st.integers(2, 60))
def test_bounded_output_keeps_head_and_tail_and_counts_the_rest(pieces: list[bytes], most: int) -> None:
    output = BoundedOutput(most)
    for piece in pieces:
        output.add(piece.replace(b"\xe2", b"").decode("ascii", "ignore").encode())
    whole = b"".join(piece.replace(b"\xe2", b"").decode("ascii", "ignore").encode() for piece in pieces).decode()
    half = most // 2
    if len(whole) <= 2 * half:
        assert output.text == whole
    else:
        gap = f"\n[… {len(whole) - 2 * half} bytes of output left out …]\n"
        assert output.text == whole[:half] + gap + whole[len(whole) - half :]


# ---------------------------------------------------------------- shell


async def test_shell_reports_status_and_kills_at_its_time(folder: Path) -> None:
    assert (
        await shell.run_command(shell.ShellArguments(command="echo a; echo b >&2; exit 4")) == "a\nb\n\n[exit status 4]"
    )
    deaf = "trap '' TERM INT; echo begin; while :; do sleep 0.1; done"
    assert await shell.run_command(shell.ShellArguments(command=deaf, timeout_s=0.5)) == "begin\n\n[killed after 0.5 s]"
    background = await shell.run_command(shell.ShellArguments(command="sleep 30 & echo $!", timeout_s=20))
    assert "[exit status 0]" in background, "a process in the background holds the pipe, and is not waited for"
    os.kill(int(background.split()[0]), 9)


# ---------------------------------------------------------------- files


def test_files_are_written_read_edited_listed_and_found(folder: Path) -> None:
    space = files.Workspace(".")
    space.write(files.WriteArguments(path="a/b/c.txt", content="one\ntwo\nthree\n"))
    assert space.read(files.ReadArguments(path="a/b/c.txt", first_line=2, lines=1)) == "two\n[lines 2 to 2 of 3]"
    space.edit(files.EditArguments(path="a/b/c.txt", old="two", new="TWO"))
    assert space.search(files.SearchFilesArguments(text="two")) == "a/b/c.txt:2: TWO"
    assert space.entries(files.ListArguments(levels=3)).splitlines() == ["a/", "a/b/", "a/b/c.txt  14 bytes"]
    with pytest.raises(ToolRefusal, match="occurs 0 times"):
        space.edit(files.EditArguments(path="a/b/c.txt", old="absent", new=""))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../secret", "without .."),
        ("a/../../secret", "without .."),
        ("/etc/passwd", "relative"),
        ("link", "symbolic link"),
        ("folder_link/secret", "symbolic link"),
        ("dangling", "symbolic link"),
        ("fifo", "not a regular file|No such device"),
        ("a\0b", "NUL"),
        ("inside", "folder|directory"),
        ("hard", "another name"),
    ],
)
def test_no_path_leads_out_of_the_workspace(tmp_path: Path, path: str, reason: str) -> None:
    inside = tmp_path / "workspace"
    (inside / "inside").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (inside / "link").symlink_to(secret)
    (inside / "dangling").symlink_to(tmp_path / "new")
    (inside / "folder_link").symlink_to(tmp_path)
    os.link(secret, inside / "hard")
    os.mkfifo(inside / "fifo")
    space = files.Workspace(str(inside))
    if path != "hard":
        with pytest.raises(ToolRefusal, match=reason):
            space.read(files.ReadArguments(path=path))
    with pytest.raises(ToolRefusal, match=reason):
        space.write(files.WriteArguments(path=path, content="changed"))
    assert secret.read_text() == "secret"
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- search


def test_search_ranks_reads_and_takes_no_operator_from_a_query(tmp_path: Path) -> None:
    found = search.Corpus(corpus(tmp_path))
    both = found.search(search.CorpusSearchArguments(query="Danube"))
    assert "[a] Rivers" in both
    assert "[b] Lakes" in both
    assert found.search(search.CorpusSearchArguments(query="danube rivers")).startswith("[a] Rivers")
    assert found.read(search.CorpusReadArguments(id="a")) == "Rivers\nThe Danube flows through ten countries."
    for query in ('"', "NEAR(a b)", "title:x AND", "a* OR (", "-", "Danube'; DROP TABLE documents; --"):
        with contextlib.suppress(ToolRefusal):
            found.search(search.CorpusSearchArguments(query=query))
    with pytest.raises(ToolRefusal, match="no document 'z'"):
        found.read(search.CorpusReadArguments(id="z"))


def test_a_folder_is_indexed_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / "sub" / "page.md").write_text("Grüße aus Ulm")
    assert search.index(tmp_path / "i.sqlite", [tmp_path / "docs"]) == 1
    assert "sub/page.md" in search.Corpus(tmp_path / "i.sqlite").search(
        search.CorpusSearchArguments(query="grusse ulm")
    )
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"txt": 1}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2"):
        search.index(tmp_path / "j.sqlite", [tmp_path / "bad.jsonl"])


# ---------------------------------------------------------------- calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2**10 + 3!=4", None),
        ("1/3 + 1/6", "1/2 = 0.5"),
        ("2^200", str(2**200)),
        ("sqrt(2)", "1.4142135623730951"),
        ("-7 // 2 + 7 % 3", "-3"),
        ("factorial(20)", "2432902008176640000"),
        ("4/2", "2"),
        ("round(2.567, 2)", "2.57"),
        ("9**9**9", None),
        ("factorial(100000)", None),
        ("2**0.5", "1.4142135623730951"),
        ("(-8)**(1/3)", None),
        ("1/0", None),
        ("__import__('os').system('id')", None),
        ("(1).__class__", None),
        ("[1]*1000000000", None),
        ("'a'*1000000000", None),
        ("10**5000 * 10**5000", None),
        ("True + 1", None),
        ("(" * 300 + "1" + ")" * 300, None),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("comb(50, 25)", "126410606437752"),
    ],
)
def test_the_calculator_computes_arithmetic_and_nothing_else(expression: str, value: str | None) -> None:
    arguments = CalculatorArguments(expression=expression)
    if value is None:
        with pytest.raises(ToolRefusal, match="cannot be computed"):
            calculate(arguments)
    else:
        assert calculate(arguments) == value


@given(st.recursive(st.integers(0, 99).map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
    lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"), max_leaves=12))  # fmt: skip
def test_the_calculator_agrees_with_python(expression: str) -> None:
    assert evaluate(expression) == eval(expression)


# ---------------------------------------------------------------- sql


def test_sql_reads_within_bounds_and_writes_nothing(folder: Path) -> None:
    path = database(folder)
    before = path.read_bytes()
    base = sql.DatabaseFile(path, writable=False)
    assert "CREATE TABLE cities" in base.tables(ToolArguments())
    assert (
        base.query(sql.QueryArguments(statement="SELECT name FROM cities ORDER BY 1", rows=1))
        == "name\nLinz\n[more than 1 rows]"
    )
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    for statement, reason in (
        ("INSERT INTO cities VALUES ('x', 1)", "readonly"),
        ("DROP TABLE cities", "readonly"),
        ("ATTACH '/etc/passwd' AS other", "authorization denied|not authorized"),
        ("VACUUM INTO 'copy.sqlite'", "authorization denied|not authorized"),
        ("PRAGMA journal_mode = WAL", "authorization denied|not authorized"),
        ("PRAGMA writable_schema = 1", "authorization denied|not authorized"),
        ("SELECT load_extension('x')", "not authorized|no such function"),
        ("SELECT readfile('/etc/passwd')", "no such function"),
        ("SELECT length(zeroblob(1000000000))", "too big"),
        ("SELECT 1; SELECT 2", "one statement"),
        (endless, "ended after"),
    ):
        with pytest.raises(ToolRefusal, match=reason):
            base.query(sql.QueryArguments(statement=statement, timeout_s=0.5))
    assert path.read_bytes() == before


def test_sql_on_a_copy_changes_only_the_copy(folder: Path) -> None:
    path = database(folder)
    before = path.read_bytes()
    base = sql.DatabaseFile(path, writable=True)
    assert base.query(sql.QueryArguments(statement="DELETE FROM cities WHERE name = 'Ulm'")) == "[1 rows changed]"
    again = sql.DatabaseFile(path, writable=True)
    assert again.query(sql.QueryArguments(statement="SELECT count(*) FROM cities")).splitlines()[1] == "1"
    assert path.read_bytes() == before


# ---------------------------------------------------------------- fetch


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/page": (200, "text/html", b"<title>T</title><script>hidden()</script><p>Hello <b>you</b></p>"),
            "/big": (200, "text/plain", b"x" * (6 * 1024 * 1024)),
            "/out": (302, "http://127.0.0.2:1/secret", b""),
            "/named": (302, "http://other.test/", b""),
            "/file": (302, "file:///etc/passwd", b""),
            "/loop": (302, "/loop", b""),
            "/hop": (302, "/page", b""),
        }
        status, kind, body = answers[self.path]
        self.send_response(status)
        self.send_header("Location" if status == 302 else "Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_fetch_reads_allowed_hosts_and_checks_every_redirect(pages: int) -> None:
    fetcher = fetch.Fetcher(fetch.AllowedHosts([], [f"127.0.0.1:{pages}"]))
    base = f"http://127.0.0.1:{pages}"
    assert fetcher.fetch(fetch.FetchArguments(url=f"{base}/hop")).endswith("text/html]\nT\nHello you")
    big = fetcher.fetch(fetch.FetchArguments(url=f"{base}/big"))
    assert big.endswith(f"[characters 0 to {fetch.MAX_CHARS} of {fetch.MAX_BYTES}]")
    for path, reason in (
        ("/out", "127.0.0.2:1 is not on the list"),
        ("/named", "other.test:80 is not on the list"),
        ("/file", "expected an http or https address"),
        ("/loop", "more than 5 redirects"),
    ):
        with pytest.raises(ToolRefusal, match=reason):
            fetcher.fetch(fetch.FetchArguments(url=base + path))


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/", "http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/",
        "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/",
        "http://0.0.0.0/", "http://localhost./", "http://[fe80::1]/", "http://100.64.0.1/", "http://224.0.0.1/",
    ],
)  # fmt: skip
def test_a_private_address_is_refused_even_if_its_name_is_allowed(url: str) -> None:
    hosts = fetch.AllowedHosts([urlsplit(url).hostname.rstrip(".")], [])  # type: ignore[union-attr]
    with pytest.raises(ToolRefusal, match=r"private address|Name or service|not known|is not on the list"):
        fetch.Fetcher(hosts).fetch(fetch.FetchArguments(url=url, timeout_s=5))


def test_a_name_that_changes_its_address_after_the_check_is_not_asked_again(
    pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = socket.getaddrinfo

    def changing(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        return real("93.184.216.34" if len(asked) == 1 else "127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    hosts = fetch.AllowedHosts([f"rebinding.test:{pages}"], [])
    found = hosts.addresses(urlsplit(f"http://rebinding.test:{pages}/page"))
    assert [address[-1][0] for address in found] == ["93.184.216.34"]
    assert asked == ["rebinding.test"], "the connection goes to this address, not to the name"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.test/",
        "file:///etc/passwd",
        "http://",
        "http://a.test\r\nHost: b/",
        "http://user@a.test/",
        "gopher://a.test",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ToolRefusal):
        fetch.Fetcher(fetch.AllowedHosts(["a.test"], [])).fetch(fetch.FetchArguments(url=url))
