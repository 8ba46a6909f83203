"""Variables in files of tool servers and agents: replaced, or an error; no server gets the literal text."""

from pathlib import Path

import pytest

from sampler.core.tools import parse_servers
from shared.configuration.environment_variables import expand
from shared.errors import ConfigError


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOT", "/srv")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("NOPE", raising=False)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${ROOT}", "/srv"),
        ("${env:ROOT}/a", "/srv/a"),
        ("${ROOT:-/data}", "/srv"),
        ("${NOPE:-/data}", "/data"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-/data}", "/data"),
        ("${EMPTY}", ""),
        ("${env:NOPE:-http://a:80/b?c}", "http://a:80/b?c"),
        ("${ROOT}${NOPE:-x}-${ROOT}", "/srvx-/srv"),
        ("$${ROOT}", "${ROOT}"),
        ("$${x%y} $HOME {a} $", "${x%y} $HOME {a} $"),
    ],
)
def test_a_variable_is_replaced(text: str, expanded: str) -> None:
    assert expand(text, "here") == expanded


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NOPE}", "environment variable NOPE is not set"),
        ("${env:NOPE}", "environment variable NOPE is not set"),
        ("${input:x}", "'${input:x}' is no variable"),
        ("${ROOT-/data}", "is no variable"),
        ("${A:-${ROOT}}", "is no variable"),
        ("${}", "is no variable"),
        ("a ${ROOT", "is no variable"),
        ("${config:a.b}", "is no variable"),
        ("${ROOT:?missing}", "is no variable"),
    ],
)
def test_what_cannot_be_replaced_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(text, "servers.json: server files")
    assert str(caught.value).startswith("servers.json: server files: ")
    assert problem in str(caught.value)


def test_every_text_of_a_servers_file_is_expanded(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(
        '{"mcpServers": {"files": {"command": "${NOPE:-python}", "args": ["${env:ROOT}"], "env": {"A": "${NOPE:-b}"}},'
        ' "web": {"url": "http://${NOPE:-web}:80/mcp", "headers": {"X": "${NOPE:-y}"}}}}'
    )
    files, web = parse_servers(str(file))
    assert (files.command, files.args, files.env) == ("python", ("/srv",), {"A": "b"})
    assert (web.url, web.headers) == ("http://web:80/mcp", {"X": "y"})
    file.write_text('{"mcpServers": {"web": {"url": "http://web/mcp", "headers": {"X": "${input:key}"}}}}')
    with pytest.raises(ConfigError, match=r"is no variable; expected \$\{NAME\}"):
        parse_servers(str(file))
