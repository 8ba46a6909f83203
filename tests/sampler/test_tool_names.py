"""Allow and deny lists: an entry's meaning does not depend on other servers' tools; an entry without effect is reported."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sampler.core.tools import ToolCatalog, ToolServer, ToolSession
from sampler.core.tools.names import chosen, named_tools
from sampler.core.tools.offered import OfferedTool
from shared.errors import ConfigError

SCRIPT = """
import sys
from pathlib import Path
from mcp.server import MCPServer

server = MCPServer("listed", log_level="WARNING")
for name in Path(sys.argv[1]).read_text().split():
    server.add_tool(lambda: name, name=name)
server.run()
"""


def pick(offered: str, allow: list[str] | None = None, exclude: list[str] | None = None) -> list[str]:
    """`offered`: "server:tool …"; what is left of it, in the same notation."""
    pairs = [word.split(":") for word in offered.split()]
    named = named_tools([OfferedTool(server, name, "", {}) for server, name in pairs])
    return [f"{tool.server}:{tool.name}" for tool in chosen(named, allow, exclude or []).values()]


@pytest.mark.parametrize("others", ["right:read_file", "right:write_file", ""])
@pytest.mark.parametrize("entry", ["left_read_file", "left.read_file", "left.read_*", "read_file", "l*_read_file"])
def test_a_denial_does_not_depend_on_other_servers_tools(entry: str, others: str) -> None:
    assert "left:read_file" not in pick(f"left:read_file left:list {others}", exclude=[entry])


@pytest.mark.parametrize("entry", ["files.*", "files.delete", "f*.d*", "files.d?lete"])
def test_an_entry_with_a_server_admits_no_tool_of_another_server(entry: str) -> None:
    assert pick("files:delete evil:files.delete", [entry]) == ["files:delete"]
    with pytest.raises(ConfigError, match=r"is allowed, but not offered; .*evil\.files\.delete"):
        pick("evil:files.delete", [entry])


@pytest.mark.parametrize("entry", ["evil.files.delete", "evil.files.*", "files.delete", "files.*", "*"])
def test_a_tool_with_a_dot_in_its_name_can_be_denied_with_and_without_its_server(entry: str) -> None:
    assert pick("evil:files.delete evil:x", exclude=[entry, "x"]) == []


def test_only_the_star_and_the_question_mark_are_patterns() -> None:
    odd = ["a[1]", "a[!b]", "a{2}", "a+", "(a|b)", "^a$", "a\\b", "a\nb"]
    for name in odd:
        named = named_tools([OfferedTool("s", each, "", {}) for each in [*odd, "a1", "a"]])
        assert name not in chosen(named, None, [name])
        assert set(chosen(named, [name], [])) == {name}
    named = named_tools([OfferedTool("s", each, "", {}) for each in odd])
    assert chosen(named, None, ["*"]) == {}


def test_a_denied_name_without_a_match_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"'delete_fiel' is denied, but not offered; the nearest offered: files\.delete_file"
    ):
        pick("files:delete_file files:read", exclude=["delete_fiel"])
    with pytest.raises(ConfigError, match=r"'fiels\.delete_file' is denied.*: files\.delete_file"):
        pick("files:delete_file files:read", exclude=["fiels.delete_file"])
    assert pick("", exclude=["anything"]) == [], "where there are no tools there is nothing to deny"


def test_a_denied_pattern_without_a_match_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert pick("files:delete_file", exclude=["dleete_*"]) == ["files:delete_file"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("tool 'dleete_*' is denied, but not offered; the nearest offered: files.delete_file")


def test_an_allowed_name_with_two_meanings_is_refused() -> None:
    """Another server's tool would be admitted, and shown under the name that was meant for the first one."""
    with pytest.raises(ConfigError, match=r"'left_read' is allowed, and may be left\.read or evil\.left_read"):
        pick("left:read evil:left_read", ["left_read"])
    assert pick("left:read evil:left_read", ["left.read"]) == ["left:read"]


def test_a_pattern_admits_a_server_only_by_its_whole_name_and_denies_by_any_name() -> None:
    offered = "file:read file_evil:read web:file_x"
    assert pick(offered, ["file_*"]) == ["file:read", "web:file_x"]
    assert pick(offered, exclude=["file_*"]) == []
    (tool,) = [OfferedTool("box", "add", "", {})]
    assert chosen({"add": tool}, None, ["b*"], several_servers=False), "a single server is never in front of a name"


def test_an_allowed_tool_that_is_also_denied_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert pick("s:a s:b", ["a", "b"], exclude=["a"]) == ["s:b"]
    assert "tool 'a' is allowed, but all of its matches are denied by a" in caplog.text


def test_a_tool_that_a_server_lists_twice_is_one_tool() -> None:
    assert pick("s:a s:b s:a") == ["s:a", "s:b"]


@contextmanager
def serving(folder: Path, **lists: str) -> Iterator[list[ToolServer]]:
    """One real server for each name, over stdio; what it lists stands in a file of the folder."""
    (folder / "listed.py").write_text(SCRIPT)
    for name, tools in lists.items():
        (folder / name).write_text(tools)
    yield [
        ToolServer(name=name, command=sys.executable, args=(str(folder / "listed.py"), str(folder / name)))
        for name in lists
    ]


async def shown(servers: list[ToolServer], exclude: list[str], catalog: ToolCatalog) -> set[str]:
    async with ToolSession(servers, exclude=exclude, catalog=catalog) as session:
        return {schema["function"]["name"] for schema in session.list_tools()}


async def test_a_denied_tool_stays_denied_while_servers_withdraw_and_bring_back_theirs(tmp_path: Path) -> None:
    catalog = ToolCatalog(max_age_s=0)
    with serving(tmp_path, left="read list", right="read") as servers:
        exclude = ["left_read", "right_read"]
        assert await shown(servers, exclude, catalog) == {"list"}
        (tmp_path / "right").write_text("other")
        assert await shown(servers, exclude, catalog) == {"list", "other"}
        (tmp_path / "left").write_text("list")
        (tmp_path / "right").write_text("read")
        assert await shown(servers, exclude, catalog) == {"list"}, "withdrawn is no spelling mistake"
        with pytest.raises(ConfigError, match="'left_raed' is denied, but not offered"):
            await shown(servers, ["left_raed"], catalog)


async def test_a_time_out_for_an_unknown_tool_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, slow="deep_search") as (server,), caplog.at_level(logging.WARNING):
        wrong = ToolServer(
            name="slow",
            command=server.command,
            args=server.args,
            tool_timeouts_s={"deep_serach": 9.0},
            idempotent_tools=frozenset(["slow.deep_search"]),
        )
        assert await shown([wrong], [], ToolCatalog()) == {"deep_search"}
    (told,) = [record.getMessage() for record in caplog.records if "names" in record.getMessage()]
    assert "tool_timeouts_s names 'deep_serach', which it does not offer; the nearest offered: slow.deep_search" in told
