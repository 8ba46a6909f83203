"""Versions that followers pull over the network from the trainer's own server: complete, as changes, as adapters."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.pulling import NotPulled, PulledVersions
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.errors import DataError
from shared.processes.mongod import Mongod
from shared.weights.assembly import Assembly, Reached
from tests.trainer.published import RUN, Trained, publish_bridge
from trainer.process.parallel import Parallel

PEERS: dict[str, Any] = {"weight_transport": "peers", "broadcast_address": "127.0.0.1", "broadcast_limit_s": 0.5}


@pytest.fixture
def trained(mongod: Mongod, alone: Parallel, tmp_path: Path) -> Iterator[Callable[..., Trained]]:
    runs: list[Trained] = []
    with publish_bridge(mongod) as bridge:

        def begin(**options: Any) -> Trained:
            runs.append(Trained(bridge, alone, tmp_path, **PEERS, **options))
            return runs[-1]

        yield begin
        for run in runs:
            run.publisher.end()


class Follower:
    """Of a machine that does not see the trainer's disk."""

    def __init__(self, run: Trained, name: str = "far") -> None:
        self._run = run
        self._config = KeeperConfig(run=RUN, db_connection_string="open", model_name_or_path=run.model)
        self.folder = run.folder / name
        self._assembly = Assembly(self.folder / "assembled", run.model)

    def reach(self, number: int) -> Reached:
        return self._run.bridge(self._reach(number), timeout_s=120)

    async def _reach(self, number: int) -> Reached:
        versions = await self._run.bridge.store.versions.all("main")
        far = [version.model_copy(update={"path": f"/another/machine/{version.version}"}) for version in versions]
        pulled = PulledVersions(self._run.bridge.store, self._config, self.folder / "pulled")
        async with asyncio.timeout(100), pulled:
            local = await pulled.fetch(far[number], far, self._assembly)
        return await asyncio.to_thread(self._assembly.reach, local.target, local.published)


@pytest.mark.parametrize("mode", ["full", "delta"])
def test_what_is_pulled_is_whole(trained: Callable[..., Trained], mode: str) -> None:
    run = trained(publish_mode=mode, full_every=3, max_steps=9)
    follower = Follower(run)
    for step in (1, 2, 3, 4):
        run.step(step)
        reached = follower.reach(step)
        assert reached.version.version == step
        run.assert_whole(reached)
        assert str(reached.folder).startswith(str(follower.folder))
    late = Follower(run, "late").reach(3)
    run.assert_whole(late)


def test_a_resume_serves_older_versions_under_its_own_address(trained: Callable[..., Trained]) -> None:
    run = trained(publish_mode="full")
    run.step(1)
    before = run.versions()[1].source
    run.publisher.end()
    run.start()
    assert {version.source for version in run.versions() if not version.pruned} != {before}
    run.assert_whole(Follower(run).reach(1))


def test_a_killed_server_is_started_again_with_the_next_version(trained: Callable[..., Trained]) -> None:
    run = trained(publish_mode="full")
    run.step(1)
    (pid,) = [
        child.pid for child in psutil.Process().children() if "trainer.publishing.serve_weights" in child.cmdline()
    ]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)
    with pytest.raises(NotPulled, match="no source has file"):
        Follower(run, "early").reach(1)
    run.step(2)
    for number in (1, 2):
        run.assert_whole(Follower(run, str(number)).reach(number))


def test_a_trainer_that_ends_waits_for_keepers_that_pull(trained: Callable[..., Trained]) -> None:
    run = trained(publish_mode="full")
    run.step(1)
    late = InferenceService(
        id="e", url="e", policy="main", version=0, status=ServiceStatus.UP, weights_url="http://e", heartbeat_s=3600
    )
    run.bridge(run.bridge.store.services.heartbeat(late))
    began = time.monotonic()
    run.publisher.end()
    assert time.monotonic() - began >= PEERS["broadcast_limit_s"]
    assert not [child for child in psutil.Process().children() if "trainer.publishing.serve_weights" in child.cmdline()]


def test_an_address_of_another_machine_is_an_error(trained: Callable[..., Trained]) -> None:
    run = trained(publish_mode="full")
    run.publisher.end()
    elsewhere = {**PEERS, "broadcast_address": "192.0.2.1"}
    with pytest.raises(
        DataError, match=r"weight_transport peers: the server of weights at 192\.0\.2\.1:0 does not run"
    ):
        Trained(run.bridge, run.parallel, run.folder / "other", **elsewhere)
