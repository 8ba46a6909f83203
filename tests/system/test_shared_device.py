"""A trainer and an engine by turns on one device, as whole processes: each is killed while the trainer has the device."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shared.documents.states import LeaseState, ServiceStatus
from shared.store import Store
from tests.system.processes import Run, engine_of
from tests.system.test_kills import assert_sound, at_step, nothing_open, said
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LEASE = "gpu:here"
STEPS = 6


@contextmanager
def sharing(folder: Path) -> Iterator[Run]:
    with Run(folder, max_steps=STEPS) as run:
        run.trainer_flags |= {"shared_device": "here", "device_lease_s": "12"}
        run.keeper_flags |= {"shared_device": "here"}
        yield run


async def frozen_with_the_device(run: Run) -> None:
    """The trainer computes, the engine sleeps: the trainer is stopped in that moment."""
    trainer = psutil.Process(run.processes["trainer"].pid)

    async def caught(store: Store) -> bool:
        if (await store.leases.claimed(LEASE)) is None or (await store.leases.get(LEASE)).state is not LeaseState.HELD:
            return False
        for process in trainer.children(recursive=True):
            process.suspend()
        lease = await store.leases.claimed(LEASE)
        if lease is not None and lease.state is LeaseState.HELD and await is_asleep(store):
            return True
        go_on(run)
        return False

    await run.until("a moment in which the trainer has the device", caught)


def go_on(run: Run) -> None:
    for process in psutil.Process(run.processes["trainer"].pid).children(recursive=True):
        process.resume()


async def is_asleep(store: Store) -> bool:
    return [service.status for service in await store.services.live("main")] == [ServiceStatus.ASLEEP]


async def is_up(store: Store) -> bool:
    return ServiceStatus.UP in [service.status for service in await store.services.live("main")]


async def next_step(run: Run) -> int:
    found = 0

    async def look(store: Store) -> bool:
        nonlocal found
        newest = await store.versions.newest("main")
        found = 0 if newest is None else newest.step
        return True

    await run.until("the newest step", look)
    return found + 1


@pytest.mark.thorough
async def test_trainer_keeper_and_engine_killed_while_the_trainer_has_the_device_cost_only_time(tmp_path: Path) -> None:
    with sharing(tmp_path) as run:
        await queue_tasks(run, first=20)
        run.start_all()
        await run.until("step 1", lambda store: at_step(store, 1))

        await frozen_with_the_device(run)
        run.end("trainer", signal.SIGKILL)
        await run.until("the engine to wake when the lease is over", is_up)
        run.start_trainer()

        step = await next_step(run)
        await run.until("a step of the next trainer", lambda store: at_step(store, step))
        await frozen_with_the_device(run)
        engine_of(run).kill()
        await run.until("the keeper to notice", lambda _: said(run, "keeper", "engine ended"))
        go_on(run)
        await run.until("the next engine", is_up)

        step = await next_step(run)
        await run.until("a step with its data", lambda store: at_step(store, min(step, STEPS - 1)))
        await frozen_with_the_device(run)
        engine = engine_of(run)
        keeper = run.processes.pop("keeper")
        os.kill(keeper.pid, signal.SIGKILL)
        keeper.wait(60)
        engine.wait(60)  # it ends with its keeper, so that its memory is free
        go_on(run)
        run.start_keeper()

        assert run.wait("trainer") == 0, run.log("trainer")
        await run.until("every opened task to be settled", nothing_open)
        assert run.end("sampler0") == 0, run.log("sampler0")
        assert run.end("keeper") == 0, run.log("keeper")
        await assert_sound(run)


@pytest.mark.thorough
async def test_a_trainer_is_not_stuck_behind_a_keeper_that_was_killed_awake(tmp_path: Path) -> None:
    """No other keeper comes: the data that was sampled is trained. The trainer is stopped until that data is there."""
    with sharing(tmp_path) as run:
        run.trainer_flags |= {"max_steps": "1"}
        await queue_tasks(run)
        run.start_all()

        async def is_admitted(store: Store) -> bool:
            found = await store.runs.get()
            return found is not None and bool(found.admission)

        async def data_is_ready(store: Store) -> bool:
            return await store.data.count_ready_groups("main") >= 2

        await run.until("the trainer to open the gate", is_admitted)
        for process in psutil.Process(run.processes["trainer"].pid).children(recursive=True):
            process.suspend()
        await run.until("data for a step", data_is_ready)
        keeper = run.processes.pop("keeper")
        os.kill(keeper.pid, signal.SIGKILL)
        keeper.wait(60)
        go_on(run)
        assert run.wait("trainer") == 0, run.log("trainer")
