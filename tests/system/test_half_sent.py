"""Half-sent requests, which cost their sender nothing and need no token, silence none of the servers."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from shared.open_files import FEWEST
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from tests.sampler.engine.local.harness import write_model
from tests.sampler.episodes import MODEL
from tests.sampler.mcp_docker.gateways import box

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
OPEN_FILES = FEWEST  # of the server
HALF_SENT = 700
WORLDS = ROOT / "tests" / "sampler" / "environments" / "worlds.py"
BEGINNINGS = (
    b"",
    b"GET /health HTTP/1.1\r\nHost: here\r\nX: a",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{",
    b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
)


@dataclass(frozen=True)
class Place:
    folder: Path
    mongod: Mongod
    run: str


@dataclass(frozen=True)
class Program:
    """`port`: where it is on a line of its output; None: it is the one that the command names."""

    command: Callable[[Place, int], list[str]]
    page: str = "/health"
    port: str | None = r"^(\d+)$"


def _engine(place: Place, port: int) -> list[str]:
    model = write_model(place.folder / "model", 0)
    return ["-m", "sampler.engine.local", "--model-path", str(model), "--port", str(port)]


def _gateway(place: Place, port: int) -> list[str]:
    flags = {"run": place.run, "model_name_or_path": MODEL, "gateway_port": 0}
    return ["-m", "sampler.gateway", *(word for key, value in flags.items() for word in (f"--{key}", str(value)))]


def _mcp_docker(place: Place, port: int) -> list[str]:
    servers = place.folder / "servers.json"
    servers.write_text(json.dumps({"mcpServers": box()}))
    flags = ["--state_folder", str(place.folder / "state"), "--isolation", "process", "--readable", str(ROOT)]
    return ["-m", "sampler.mcp_docker", "--servers", str(servers), "--port", "0", "--warm_sessions", "0", *flags]


def _environments(place: Place, port: int) -> list[str]:
    flags = ["--environments", f"guess={WORLDS}:Guess", "--metrics_address", f"127.0.0.1:{port}"]
    return ["-m", "sampler.environments", "--port", "0", *flags]


PROGRAMS = {
    "the agents' gateway": Program(_gateway),
    "MCP-Docker": Program(_mcp_docker),
    "environments": Program(_environments),
    "a process's own figures": Program(_environments, "/metrics", None),
    "the local engine": Program(_engine, port=None),
    "the viewer": Program(lambda place, port: ["-m", "tandem", "view", "--port", "0"], "/", r"http://[^:]+:(\d+)/"),
    "a run's figures": Program(
        lambda place, port: ["-m", "tandem", "metrics", place.run, "--port", "0"], port=r"http://[^:]+:(\d+)/"
    ),
}


@contextlib.contextmanager
def started(program: Program, place: Place) -> Iterator[int]:
    """Its port. It may open `OPEN_FILES` files."""
    port = free_port()
    words = shlex.join([sys.executable, *program.command(place, port)])
    process = subprocess.Popen(
        ["sh", "-c", f"ulimit -n {OPEN_FILES}; exec {words}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"DB_CONNECTION_STRING": place.mongod.connection_string},
    )
    assert process.stdout is not None
    try:
        if program.port is not None:
            found = next(filter(None, (re.search(program.port, line) for line in process.stdout)))
            port = int(found[1])
        _until_it_answers(process, port, program.page)
        reading = threading.Thread(target=process.stdout.read, daemon=True)
        reading.start()
        yield port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _until_it_answers(process: "subprocess.Popen[str]", port: int, page: str) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(retries=0), trust_env=False) as http:
        for _ in range(int(PATIENCE_S / 0.1)):
            assert process.poll() is None, "it ended"
            with contextlib.suppress(httpx.TransportError):
                assert http.get(f"http://127.0.0.1:{port}{page}", timeout=PATIENCE_S).status_code == 200
                return
            threading.Event().wait(0.1)  # another process
    raise AssertionError("it does not answer")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_half_sent_requests_silence_no_server(name: str, tmp_path: Path, mongod: Mongod, store: Store) -> None:
    await asyncio.to_thread(_attack, PROGRAMS[name], Place(tmp_path, mongod, store.run))


def _attack(program: Program, place: Place) -> None:
    with started(program, place) as port, contextlib.ExitStack() as half_sent:
        for number in range(HALF_SENT):
            client = half_sent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            with contextlib.suppress(ConnectionError):  # closed already
                client.sendall(BEGINNINGS[number % len(BEGINNINGS)])
        for _ in range(3):
            answer = httpx.get(f"http://127.0.0.1:{port}{program.page}", timeout=PATIENCE_S, trust_env=False)
            assert answer.status_code == 200
