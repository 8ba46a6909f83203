"""The services of a run that waits send the database few commands: real processes, counted by MongoDB's profiler."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from shared.documents.states import RunState
from shared.names import TRAIN_SPLIT
from shared.processes.waits import WAITED
from shared.store import Store
from shared.store.poll_timer import LONGEST_S
from tandem.launch.children import Children
from tandem.launch.display import Display
from tandem.launch.figures import StepMetrics
from tandem.launch.refreshing import refreshed
from tests.system.processes import ROOT, Run
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SERVICES = ("trainer", "sampler", "keeper", "launcher")
MOST_PAUSED, MOST_WITHOUT_TASKS = 1.0, 1.25  # commands a second of each service; measured: 0.56 and 0.95
LONG_S = 3 * LONGEST_S  # after so long the intervals of all queries have grown, and every query comes several times


async def counted(connection_string: str, run: str) -> Counter[str]:
    """Commands a second, by collection and kind."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(connection_string)
    database = client[run]
    await database.command("profile", 2)
    began = time.monotonic()
    await asyncio.sleep(LONG_S)
    await database.command("profile", 0)
    seconds = time.monotonic() - began
    found = await database["system.profile"].find({"command.profile": {"$exists": False}}).to_list()
    await database["system.profile"].drop()
    await client.close()
    return Counter(
        {
            what: n / seconds
            for what, n in Counter(
                f"{row['ns'].partition('.')[2]} {next(iter(row['command']))}" for row in found
            ).items()
        }
    )


def all_wait(*, paused: bool) -> Callable[[Store], Awaitable[bool]]:
    """Whether sampler and trainer have waited for so long that the intervals of their queries have grown."""

    async def ask(store: Store) -> bool:
        waits = {worker.kind: worker for worker in await store.workers.live()}
        return {"keeper", "sampler", "trainer"} <= set(waits) and all(
            float(waits[kind].stats.get(WAITED) or 0) > 2 * LONGEST_S
            and ("it is paused" in waits[kind].doing or "the run is paused" in waits[kind].doing) is paused
            for kind in ("sampler", "trainer")
        )

    return ask


async def test_each_service_of_a_waiting_run_sends_about_a_command_a_second_at_most(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=6) as run:
        async with Store.open(run.mongod.connection_string, run.name) as store:
            await store.runs.ensure()
            await queue_tasks(run, first=4)
            run.start_all()
            metrics = {"main": StepMetrics(tmp_path / "metrics.jsonl")}
            display = Display(run.name)
            with Children(run.name, ROOT) as children:
                async with refreshed(display, children, metrics, store, tmp_path):
                    await run.until("the tasks to be used up", all_wait(paused=False))
                    without_tasks = await counted(run.mongod.connection_string, run.name)
                    await store.runs.set_state(RunState.PAUSED)
                    await run.until("everybody to pause", all_wait(paused=True))
                    paused = await counted(run.mongod.connection_string, run.name)
            assert (await store.tasks.count_by_status())[TRAIN_SPLIT].get("settled") == 4
    for state, by_kind, most in (("without tasks", without_tasks, MOST_WITHOUT_TASKS), ("paused", paused, MOST_PAUSED)):
        listed = "\n".join(f"{n:.2f} {what}" for what, n in by_kind.most_common())
        assert 0 < by_kind.total() <= most * len(SERVICES), f"{state}: {by_kind.total():.2f}/s\n{listed}"
