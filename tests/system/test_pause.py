"""The commands pause and resume a run while its services run."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from shared.store import Store
from tandem import app
from tandem.audit.run import audit
from tandem.launch.display import Display
from tandem.launch.figures import take_snapshot
from tests.system.processes import Run
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def tandem(run: Run, command: str) -> str:
    flags = ["--db_connection_string", run.mongod.connection_string]
    result = await asyncio.to_thread(CliRunner().invoke, app, [command, run.name, *flags])
    assert result.exit_code == 0, result.output
    return result.stdout


async def at_rest(store: Store) -> bool:
    """Everybody has heard of the pause, and nothing is under way: no episode, no settlement."""
    doing = {worker.kind: worker.doing for worker in await store.workers.all()}
    leased = (await store.tasks.count_slots()).get("leased", 0)
    completed = (await store.tasks.count_by_status())["train"].get("completed", 0)
    return leased == completed == 0 and "it is paused" in doing["sampler"] and "the run is paused" in doing["trainer"]


@contextmanager
def standing_still(run: Run, name: str) -> Iterator[None]:
    """A part does nothing meanwhile, however long that is."""
    parent = psutil.Process(run.processes[name].pid)
    processes = [parent, *parent.children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


async def progress(store: Store) -> tuple[int, dict[str, int]]:
    newest = await store.versions.newest("main")
    return (0 if newest is None else newest.step), await store.records.count_by_status()


@pytest.mark.thorough
async def test_a_paused_run_finishes_work_in_progress_and_continues_after_resume(
    tmp_path: Path,
) -> None:
    with Run(tmp_path, max_steps=6) as run:
        await queue_tasks(run, first=4)
        run.start_all()

        async def waits_for_step_3(store: Store) -> bool:
            return (await progress(store))[0] == 2

        async def a_step_is_ready(store: Store) -> bool:
            return await store.data.count_ready_groups("main") >= 2

        await run.until("the two steps of four tasks", waits_for_step_3)
        with standing_still(run, "trainer"):
            await queue_tasks(run)
            await run.until("the data of step 3", a_step_is_ready)
            assert "run system is now paused" in await tandem(run, "pause")
        await run.until("everybody to pause", at_rest)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            before = await progress(store)
            assert before[0] == 2
            assert set(before[1]) <= {"scored", "ready", "abandoned"}, "no episode was cut"
            assert await store.data.count_ready_groups("main") >= 2, "the trainer waits though it has a step's data"
            await asyncio.sleep(2.5)  # several looks of every service
            assert await progress(store) == before
            display = Display(run.name)
            display.snapshot = await take_snapshot(store, "main")
            assert display.snapshot.paused
        assert "run system is paused" in await tandem(run, "status")
        assert "run system is already paused" in await tandem(run, "pause")
        assert await tandem(run, "resume") == "run system is now running\n"
        assert run.wait("trainer") == 0, run.log("trainer")
        assert run.end("sampler0") == 0, run.log("sampler0")
        async with Store.open(run.mongod.connection_string, run.name) as store:
            assert (await progress(store))[0] == 6
            report = await audit(store)
            assert report.ok, report
