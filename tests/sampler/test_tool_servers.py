"""Reading the servers: a URL, an mcpServers JSON, and what is wrong with it."""

import json
import sys
from pathlib import Path

import pytest

from sampler.core.tools import ToolCatalog, ToolServer, ToolSession, parse_servers
from shared.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_the_example_file_matches_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "s3cret")
    monkeypatch.setenv("DATA_DIR", "/data")
    servers = {server.name: server for server in parse_servers(ROOT / "assets" / "mcp_servers_example.json")}
    assert {name: server.transport for name, server in servers.items()} == {
        "search": "http",
        "news": "sse",
        "tools": "mcpapi",
        "files": "stdio",
        "clock": "stdio",
    }
    assert servers["search"].headers == {"Authorization": "Bearer s3cret"}
    assert servers["search"].call_timeout_s("search.deep_search", "deep_search") == 300


def test_servers_are_read_from_a_url_a_file_or_a_mapping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "s3cret")
    config = {
        "mcpServers": {
            "search": {"url": "http://h/mcp", "type": "http", "headers": {"Authorization": "Bearer ${SEARCH_KEY}"}},
            "files": {"command": "${PYTHON}", "args": ["a.py"], "env": {"ROOT": "/data"}},
            "off": {"command": "x", "disabled": True},
        }
    }
    path = tmp_path / "servers.json"
    path.write_text(json.dumps(config))
    search, files = parse_servers(path)
    assert search.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(search)
    assert (files.command, files.args, files.env) == (sys.executable, ("a.py",), {"ROOT": "/data"})
    assert parse_servers(config) == [search, files]
    assert parse_servers("http://h:1/mcp") == [ToolServer(name="manager", url="http://h:1/mcp")]
    assert parse_servers(None) == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "exactly one of"),
        ({"url": "http://h", "command": "x"}, "exactly one of"),
        ({"url": "ftp://h"}, "expected http"),
        ({"url": "http://h", "transport": "ws"}, "not supported"),
        ({"url": "http://h", "timeout_s": "5"}, "seconds above 0"),
        ({"url": "http://h", "tool_timeouts_s": {"x": -1}}, "tool_timeouts_s of 'x' is -1"),
        ({"url": "http://h", "idempotent_tools": "x"}, "expected a list"),
        ({"url": "http://h", "header": {}}, "unknown key 'header'"),
        ({"command": "${NO_SUCH_VARIABLE}"}, "NO_SUCH_VARIABLE is not set"),
        ({"command": ["x"]}, "expected a text"),
        ({"command": "x", "args": "server.py"}, "args is str; expected a list"),
        ({"command": "x", "args": ["a", ["b"]]}, r"args\.1 is \['b'\]; expected a text"),
        ({"command": "x", "env": {"A": None}}, r"env\.A is None; expected a text"),
        ({"command": "x", "timeout_s": float("nan")}, "seconds above 0"),
        ({"command": "x", "disabled": "yes"}, "disabled is 'yes'; expected true or false"),
        ({"command": "x", "shared": 1}, "shared is 1; expected true or false"),
        ({"url": "http://h", "shared": True}, "unknown key 'shared'"),
        ({"url": "http://"}, "expected http"),
        ({"url": "http://h:99999/mcp"}, "Port out of range"),
        ({"url": "http://[::1/mcp"}, "Invalid IPv6 URL"),
        ({"url": "http://h", "transport": ["sse"]}, "not supported"),
    ],
)
def test_the_error_for_a_wrong_server_entry_names_the_problem(entry: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_servers({"mcpServers": {"s": entry}})


def test_secrets_in_urls_and_arguments_are_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "s3cret")
    search, node, files, fixed = parse_servers(
        {
            "mcpServers": {
                "search": {"url": "http://me:${KEY}@h:5/mcp?key=${KEY}&x=1"},
                "node": {"url": "http://h/${KEY}/mcpapi"},
                "files": {"command": "server", "args": ["--key", "${KEY}", 5]},
                "fixed": {"url": "https://h/sse?key=s3cret", "headers": {"A": "${KEY}"}},
            }
        }
    )
    assert search.url == "http://me:s3cret@h:5/mcp?key=s3cret&x=1"
    assert files.args == ("--key", "s3cret", "5")
    told = [server.address for server in (search, node, files, fixed)]
    assert told == ["http://h:5/mcp", "http://h/${KEY}/mcpapi", "server --key ${KEY} 5", "https://h/sse"]
    assert "s3cret" not in "".join(map(repr, (search, node, files, fixed)))
    for server in (search, node, fixed):
        assert server.quoted(f"401 for url '{server.url}'") == f"401 for url '{server.address}'"
    assert "s3cret" not in search.quoted("401 for url 'http://h:5/elsewhere?key=s3cret&x=1'")
    for url in ("http://h/mcp?key=s3cret", "http://me:s3cret@h/mcp"):
        with pytest.raises(ConfigError, match="is stored with the run; put a token into MCP_BEARER_TOKEN") as caught:
            parse_servers(url)
        assert "s3cret" not in str(caught.value)


def test_the_errors_for_a_missing_file_and_an_unknown_url_scheme_name_the_expectation() -> None:
    with pytest.raises(ConfigError, match="mcp_manager_url: url is 'ftp://h/mcp'; expected http"):
        parse_servers("ftp://h/mcp")
    with pytest.raises(ConfigError, match=r"servers\.json: cannot be read"):
        parse_servers("no/such/servers.json")


GROWING = """
import sys
from pathlib import Path
from mcp.server import MCPServer

server = MCPServer("growing", log_level="WARNING")
for name in Path(sys.argv[1]).read_text().split():
    server.add_tool(lambda: name, name=name)
server.run()
"""


async def test_a_tool_missing_from_the_cached_list_is_requested_again_before_it_is_refused(
    tmp_path: Path,
) -> None:
    """The server was changed and restarted without an announcement."""
    script, names = tmp_path / "growing.py", tmp_path / "names"
    script.write_text(GROWING)
    names.write_text("old")
    server = ToolServer(name="growing", command=sys.executable, args=(str(script), str(names)))
    catalog = ToolCatalog()
    async with ToolSession([server], ["old"], catalog=catalog):
        names.write_text("old new")
    async with ToolSession([server], ["new"], catalog=catalog) as later:
        assert not (await later.call("new", {})).is_error
