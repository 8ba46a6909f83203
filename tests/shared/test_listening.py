"""Every program that listens does so on IPv6 too, and says in one sentence that its place cannot be had."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.errors import ConfigError
from shared.http.listening import in_url, listening_socket, reachable
from shared.names import is_loopback_host
from tests.conftest import ROOT


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "localhost"])
def test_a_server_listens_at_a_loopback_address_of_either_kind(host: str) -> None:
    with listening_socket(host, 0, "host") as listener:
        place = listener.getsockname()[:2]
        socket.create_connection(place).close()
    assert is_loopback_host(host)
    assert in_url(host) == ("[::1]" if "::1" in host else host)
    assert reachable(host) == in_url(host)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_place_that_cannot_be_had_is_one_sentence(taken: int) -> None:
    for host, port, said in (
        ("127.0.0.1", taken, "the port is taken by another program; expected a free one, or 0"),
        ("203.0.113.1", 0, "this machine has no such address"),
        ("no-such-host.invalid", 0, "expected an address of this machine"),
        ("a" * 70 + ".org", 0, "expected an address of this machine"),
        ("2001:db8::1", 0, "cannot listen on [2001:db8::1]:0"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)) as caught:
            listening_socket(host, port, "--host and --port")
        assert "\n" not in str(caught.value)


MODEL = ("--model_name_or_path", "assets/example/model")
NOWHERE = ("--db_connection_string", "mongodb://127.0.0.1:1/")
PROGRAMS = {
    "gateway": (
        "sampler.gateway",
        "--run",
        "r",
        *NOWHERE,
        *MODEL,
        "--gateway_host",
        "{host}",
        "--gateway_port",
        "{port}",
    ),
    "engine": ("sampler.engine.local", "--model-path", "assets/example/model", "--host", "{host}", "--port", "{port}"),
    "mcp-docker": ("sampler.mcp_docker", "--servers", "{servers}", "--host", "{host}", "--port", "{port}"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_says_in_one_line_that_its_port_is_taken(program: str, tmp_path: object, taken: int) -> None:
    servers = f"{tmp_path}/servers.json"
    with open(servers, "w", encoding="utf-8") as file:
        file.write('{"mcpServers": {"files": {"command": "true"}}}')
    words = [word.format(host="127.0.0.1", port=taken, servers=servers) for word in PROGRAMS[program]]
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "taken" in line]
    assert f"cannot listen on 127.0.0.1:{taken}: the port is taken by another program" in line
    assert "Traceback" not in done.stderr


def test_no_program_opens_a_listening_socket_otherwise() -> None:
    places = [path for top in ("shared", "sampler", "trainer", "scripts/tandem") for path in (ROOT / top).rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix() for path in places if "create_server(" in path.read_text(encoding="utf-8")
    }
    assert found == {"shared/http/listening.py", "sampler/gateway/relay.py"}, "the relay runs without our packages"
