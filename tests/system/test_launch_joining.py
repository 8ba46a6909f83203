"""Machines that join a run, leave it and come back, and when each machine of a run ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.documents.run import Admission, TrainerEnd
from shared.documents.states import RunState, ServiceStatus, TaskStatus
from shared.names import EVAL_SPLIT
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.run import audit
from tandem.launch.following import is_over, until_over
from tandem.launch.nodes import NodeSettings, stop_line
from tandem.launch.settings import LaunchConfig
from tandem.launch.waiting import signals_set
from tests.shared.builders import make_task
from tests.system.processes import PATIENCE_S, PATIENT, ROOT, launched

pytestmark = pytest.mark.timeout(1200)
ADMISSION = Admission(groups_per_step=1, max_staleness=0, num_steps=1)
EXAMPLE = ["--config", "assets/example/minirl.yml"]


# -------------------------------------------------------------------------------------------- when it ends


async def test_a_run_is_over_when_its_trainer_has_ended_and_its_last_version_was_evaluated(store: Store) -> None:
    assert not await is_over(store, "main")
    await store.versions.announce("main", 0, "/w/0", {})
    await store.tasks.insert_new([make_task(0, split=EVAL_SPLIT, at_version=0)])
    generation = await store.runs.start_trainer("main", ADMISSION)
    version = (await store.versions.announce("main", 1, "/w/1", {})).version
    assert not await is_over(store, "main")
    await store.runs.end_trainer("main", TrainerEnd(trainer_generation=generation, step=1, reason="done"))
    assert not await is_over(store, "main")
    await store.evaluation.queue_round("main", version)
    assert not await is_over(store, "main")
    await store.database["tasks"].update_many({"at_version": version}, {"$set": {"status": TaskStatus.SETTLED.value}})
    assert await is_over(store, "main")


async def test_a_machine_that_joins_an_ended_run_waits_for_a_trainer_and_then_leaves(
    clean: pytest.MonkeyPatch, store: Store
) -> None:
    await store.versions.announce("main", 0, "/w/0", {})
    end = TrainerEnd(trainer_generation=await store.runs.start_trainer("main", ADMISSION), step=0, reason="done")
    await store.runs.end_trainer("main", end)
    config = LaunchConfig.load(["demo", *EXAMPLE, "--join", "true", "--start_timeout_s", "0.5"])
    said: list[str] = []
    assert await until_over(store, config, said.append) == "the run has ended, and no trainer continues it"
    assert said == ["the run has ended; waiting 0.5 s for a trainer to continue it"]
    patient = config.model_copy(update={"start_timeout_s": PATIENCE_S})
    waiting = asyncio.create_task(until_over(store, patient, said.append))
    generation = await store.runs.start_trainer("main", ADMISSION)
    await asyncio.sleep(1.5)
    assert not waiting.done()
    await store.runs.end_trainer("main", TrainerEnd(trainer_generation=generation, step=0, reason="done"))
    assert await asyncio.wait_for(waiting, PATIENCE_S) == "the run has ended"


# -------------------------------------------------------------------------------------------- two machines, for real


class Machines:
    """Launches of one run, as on machines of their own: each has an address of the loopback."""

    def __init__(self, run: str, folder: Path, database: str) -> None:
        self.run, self.folder, self.database = run, folder, database
        self.launches: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, **variables: str) -> None:
        fixed = ["--max_steps", "3", "--groups_per_step", "2", "--save_steps", "3", "--max_concurrent_episodes", "8"]
        command = [sys.executable, "-m", "tandem.launch", self.run, *EXAMPLE, *fixed, "--eval_file", "", *arguments]
        with (self.folder / f"{name}.out").open("ab") as out:
            self.launches[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | PATIENT | {"DB_CONNECTION_STRING": self.database} | variables,
            )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def end(self, name: str, sign: signal.Signals) -> int:
        self.launches[name].send_signal(sign)
        return self.launches[name].wait(PATIENCE_S)


@pytest.fixture
def machines(run: str, tmp_path: Path) -> Iterator[Machines]:
    with Mongod(tmp_path / "mongodb") as server:
        found = Machines(run, tmp_path, server.connection_string)
        try:
            yield found
        finally:
            for launch in found.launches.values():
                with contextlib.suppress(ProcessLookupError):
                    launch.send_signal(signal.SIGTERM)
            for launch in found.launches.values():
                launch.wait(PATIENCE_S)
    assert launched(run) == []


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.thorough
async def test_samplers_and_engine_join_leave_and_come_back_while_another_machine_trains(
    machines: Machines, clean: pytest.MonkeyPatch
) -> None:
    """Machine 0 has the trainer alone. It gets samplers and an engine from machines that join, one of which goes in between."""
    machines.start("main", ENGINE="none", NUM_SAMPLERS="0", NODE_ADDR="127.0.0.2")
    machines.start("first", JOIN="true", NODE_NAME="first", NODE_ADDR="127.0.0.3", NUM_SAMPLERS="1")
    async with Store.open(machines.database, machines.run) as store:

        async def until_trained(step: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while (newest := await store.versions.newest("main")) is None or newest.step < step:
                texts = "\n".join(machines.said(name) for name in machines.launches)
                assert time.monotonic() < deadline, f"step {step} never came:\n{texts}"
                await asyncio.sleep(0.1)

        async def until_up(address: str) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not any(
                s.url.startswith(f"{address}:") and s.status == ServiceStatus.UP for s in await store.services.all()
            ):
                assert time.monotonic() < deadline, machines.said("second")
                await asyncio.sleep(0.1)

        await until_trained(1)
        await store.runs.set_state(RunState.PAUSED)  # else the run may be over before the second machine joins
        up = [service for service in await store.services.all() if service.status == ServiceStatus.UP]
        assert [service.url.rpartition(":")[0] for service in up] == ["http://127.0.0.3"]
        assert machines.end("first", signal.SIGTERM) == 143
        left = [service.status for service in await store.services.all()]
        assert left == [ServiceStatus.DOWN]
        machines.start("second", JOIN="true", NODE_NAME="second", NODE_ADDR="127.0.0.4", NUM_SAMPLERS="1")
        await until_up("http://127.0.0.4")
        await store.runs.set_state(RunState.RUNNING)
        await until_trained(3)
        statuses = {name: machines.launches[name].wait(PATIENCE_S) for name in ("main", "second")}
        assert statuses == {"main": 0, "second": 0}, machines.said("main") + machines.said("second")
        assert "the run has ended" in machines.said("second")
        assert "first joins the run at 127.0.0.3: no trainer here" in machines.said("first")
        report = await audit(store, running=True)  # tasks beyond the last step are still open
        assert report.ok, report
    summary = json.loads((ROOT / "output" / machines.run / "summary.json").read_text())
    assert summary["steps"] == 3


@pytest.mark.parametrize(("sign", "forced"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
async def test_only_ctrl_c_after_a_signal_ends_the_grace(sign: signal.Signals, forced: bool) -> None:
    """A scheduler sends SIGTERM more than once: to the step, and through srun to its tasks."""
    stopped, again = asyncio.Event(), asyncio.Event()
    with signals_set(stopped, again.set) as received:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stopped.wait(), 60)
        os.kill(os.getpid(), sign)
        await asyncio.sleep(0.2)
        assert again.is_set() is forced
    assert received == [signal.SIGTERM, sign]


def test_what_a_signal_says_names_it_and_offers_ctrl_c_again_to_those_who_pressed_it() -> None:
    joined, alone = NodeSettings.model_validate({"join": True}), NodeSettings.model_validate({})
    assert stop_line(joined, signal.SIGTERM) == "SIGTERM: this machine leaves the run"
    assert stop_line(alone, signal.SIGTERM) == "SIGTERM: stopping everything"
    assert "Ctrl-C again" in stop_line(joined, signal.SIGINT)
