"""A keeper whose engine is killed, also during its restart: a real child process, killed by signals."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import EngineUnavailable
from sampler.engine.keeper.keeper import Keeper, KeeperConfig
from shared.documents.states import ServiceStatus
from shared.store import Store
from shared.weights.assembly import Assembly
from tests.system.processes import MODEL, ROOT

# Start number n writes its pid to FOLDER/n; those in DYING kill themselves: at once, or as soon as they have answered once.
ENGINE = """
import http.server, os, runpy, signal, sys
from pathlib import Path
folder, dying, answered, model, port = Path(sys.argv[1]), sys.argv[2].split(","), *sys.argv[3:6]
start = str(len(list(folder.iterdir())))
(folder / start).write_text(str(os.getpid()))
class Once(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers()
        self.wfile.write(b"{}"); self.wfile.flush()
        os.kill(os.getpid(), signal.SIGKILL)
if start in dying and answered == "silent":
    os.kill(os.getpid(), signal.SIGKILL)
if start in dying:
    http.server.HTTPServer(("127.0.0.1", int(port)), Once).serve_forever()
sys.argv = ["stub", "--model-path", model, "--port", port]
runpy.run_module("scripts.bench.stub_engine", run_name="__main__")
"""


@asynccontextmanager
async def keeping(
    store: Store, folder: Path, dying: str, answered: str, max_restarts: int
) -> AsyncIterator["asyncio.Task[None]"]:
    starts = folder / "starts"
    starts.mkdir()
    command = [sys.executable, "-c", ENGINE, str(starts), dying, answered, "{model}", "{port}"]
    config = KeeperConfig(
        run=store.run,
        db_connection_string="(open already)",
        model_name_or_path=MODEL,
        engine_command=shlex.join(command),
        poll_s=0.05,
        heartbeat_s=0.05,
        max_restarts=max_restarts,
    )
    stop = asyncio.Event()
    async with EngineClient() as client:
        running = asyncio.create_task(Keeper(store, client, config, Assembly(folder / "cache", MODEL)).run(stop))
        yield running
        stop.set()
        await asyncio.wait([running], timeout=60)


async def serves(store: Store, keeper: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(100):
        while not keeper.done():
            found = await store.services.all()
            if [(s.status, s.version) for s in found] == [(ServiceStatus.UP, 0)]:
                return
            await asyncio.sleep(0.02)
    keeper.result()


async def restarts(store: Store) -> float:
    (worker,) = await store.workers.all()
    return float(worker.stats["restarts"])


@pytest.mark.parametrize("answered", ["silent", "answered once"])
async def test_an_engine_killed_during_its_start_is_restarted_up_to_max_restarts_times(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: str
) -> None:
    monkeypatch.chdir(ROOT)
    async with keeping(store, tmp_path, "0,2,3", answered, max_restarts=4) as keeper:
        await serves(store, keeper)  # the first start was killed, the second succeeded
        os.kill(int((tmp_path / "starts" / "1").read_text()), signal.SIGKILL)
        async with asyncio.timeout(100):
            while not (tmp_path / "starts" / "4").exists() and not keeper.done():  # noqa: ASYNC110  # a child makes it
                await asyncio.sleep(0.02)
        await serves(store, keeper)
        assert await restarts(store) == 4
        assert not keeper.done()


async def test_a_keeper_exits_with_a_message_after_more_engine_exits_than_max_restarts(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    async with keeping(store, tmp_path, "0,1,2,3", "silent", max_restarts=2) as keeper:
        await asyncio.wait([keeper], timeout=100)
        with pytest.raises(EngineUnavailable, match="ended 3 times, the last with status -9"):
            keeper.result()
    assert len(list((tmp_path / "starts").iterdir())) == 3
