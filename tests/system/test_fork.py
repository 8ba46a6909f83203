"""`tandem fork` with real processes: an engine, tools, and samplers of which one is killed while it plays the fork."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from shared.audit.report import Check
from shared.audit.run import audit
from shared.cli import app
from shared.documents.packed import unpack_ints
from shared.documents.states import OVER
from shared.store import Store
from tests.system.processes import Run
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
N = 24


async def tandem(run: Run, *arguments: str) -> Result:
    flags = ["--db_connection_string", run.mongod.connection_string]
    return await asyncio.to_thread(CliRunner().invoke, app, [arguments[0], run.name, *arguments[1:], *flags])


@pytest.mark.thorough
async def test_a_fork_survives_the_death_of_its_sampler_and_begins_with_the_ids_of_its_turn(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        run.sampler_flags |= {"open_all_tasks": "true", "heartbeat_s": "1", "max_concurrent_episodes": "2"}
        await queue_tasks(run, num_generations=2, first=1)
        run.start_tools()
        run.start_keeper()
        run.start_sampler("first")

        async def is_over(store: Store) -> bool:
            return not await store.questions.has_unended_tasks()

        await run.until("the origin is played", is_over)
        run.end("first", signal.SIGKILL)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            (task,) = await store.database["tasks"].find({"split": "train"}).to_list()
            record = await store.records.get(task["slots"][0]["record_id"])
            assert record is not None
            first = record.traj[0]

            async def nobody_lives(store: Store) -> bool:
                return not [worker for worker in await store.workers.live() if worker.kind == "sampler"]

            await run.until("the killed sampler is missed", nobody_lives)
            told = await tandem(run, "fork", first, "--n", str(N))
            assert told.exit_code == 1, told.output
            assert "no sampler is alive; start one" in told.stderr
            assert f"python -m sampler --run {run.name}" in told.stderr

            run.start_sampler("second")

            async def is_in_the_middle(store: Store) -> bool:
                (fork,) = await store.database["tasks"].find({"split": "fork"}).to_list()
                states = [slot["status"] for slot in fork["slots"]]
                return "scored" in states and "leased" in states and "open" in states

            await run.until("the fork is half played", is_in_the_middle)
            run.end("second", signal.SIGKILL)
            run.start_sampler("third")

            async def third_lives(store: Store) -> bool:
                return any(
                    worker.id.endswith(f":{run.processes['third'].pid}") for worker in await store.workers.live()
                )

            await run.until("another sampler is there", third_lives)
            shown = await tandem(run, "fork", first, "--n", str(N), "--json")
            assert shown.exit_code == 0, shown.output
            found = json.loads(shown.stdout)
            assert [one["slot"] for one in found["continuations"]] == list(range(N))
            assert all(one["score"] is not None for one in found["continuations"])

            repeated = await tandem(run, "fork", first, "--n", str(N), "--json")
            assert json.loads(repeated.stdout) == found, "the same group"
            prompts = await store.records.dispatches_of([record.id, *(one["record"] for one in found["continuations"])])
            ids = {tuple(unpack_ints(dispatches[0].prompt_ids).tolist()) for dispatches in prompts.values()}
            assert len(ids) == 1, "the origin's, token by token"
            (fork,) = await store.database["tasks"].find({"split": "fork"}).to_list()
            assert fork["status"] in OVER
            assert not await store.questions.with_data([one["record"] for one in found["continuations"]])
            report = await audit(store)
            assert report.ok, report
            assert report.results[Check.FORKED].examined == N
