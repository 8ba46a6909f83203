"""`tandem fork` with real processes: an engine, tools, and samplers of which one is killed while it plays the fork."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from shared.documents.packed import unpack_ints
from shared.documents.run import Worker
from shared.documents.states import OVER
from shared.store import Store
from tandem import app
from tandem.audit.report import Check
from tandem.audit.run import audit
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
            assert not await store.stored.with_data([one["record"] for one in found["continuations"]])
            report = await audit(store)
            assert report.ok, report
            assert report.results[Check.FORKED].examined == N

            async def has_told_all(store: Store) -> bool:
                return any(worker.stats.get("episodes", 0) > 0 for worker in await living_samplers(store))

            await run.until("the last sampler's heartbeat says what it played", has_told_all)
            (last,) = await living_samplers(store)
            assert last.stats["reward_mean"] is None, "it played forks alone, of which the run's reward is not the mean"


async def living_samplers(store: Store) -> list[Worker]:
    return [worker for worker in await store.workers.live() if worker.kind == "sampler"]


@pytest.mark.thorough
async def test_forks_of_a_run_that_trains_end_and_change_nothing_of_it(tmp_path: Path) -> None:
    """Of a training episode while its run goes on: its steps, their data, the off-policy budget and the processes' ends."""
    with Run(tmp_path, max_steps=3) as run:
        await queue_tasks(run)
        run.start_all()

        async def has_played(store: Store) -> bool:
            return bool(await store.records.recent(1))

        await run.until("an episode has ended", has_played)
        async with Store.open(run.mongod.connection_string, run.name) as store:
            (record,) = await store.records.recent(1)
            turn = f"{record.id}:0"
            begun = [await tandem(run, "fork", turn, "--n", "6", *again, "--no_wait") for again in ([], ["--again"])]
            assert [one.exit_code for one in begun] == [0, 0], begun
            shown = await tandem(run, "fork", turn, "--n", "6", "--json")
            assert shown.exit_code == 0, shown.output
            of_a_fork = json.loads(shown.stdout)["continuations"][0]["record"]
            shown = await tandem(run, "fork", f"{of_a_fork}:0", "--n", "2", "--json")
            assert shown.exit_code == 0, shown.output
            assert run.wait("trainer") == 0, run.log("trainer")
            assert run.end("sampler0") == 0, run.log("sampler0")
            forks = await store.database["tasks"].find({"split": "fork"}).to_list()
            assert sorted((fork["seq"], fork["status"]) for fork in forks) == [(n, "settled") for n in range(3)]
            assert await store.database["record_data"].count_documents({"split": {"$ne": "train"}}) == 0
            steps = await store.database["trained_steps"].find().to_list()
            assert sorted(step["step"] for step in steps) == [1, 2, 3]
            trained = [name for step in steps for name, _ in step["groups"]]
            assert len(set(trained)) == len(trained) == 6, "two groups in each step, none twice"
            assert all(":train:" in name for name in trained)
            opened = await store.database["tasks"].distinct("seq", {"split": "train", "status": {"$ne": "created"}})
            barren = await store.database["tasks"].count_documents({"split": "train", "status": "abandoned"})
            assert opened == list(range(len(opened))), "in their order, and none left out"
            assert len(opened) - barren <= 3 * 2, "no more than its steps want"
            report = await audit(store)
            assert report.ok, report
            assert report.results[Check.FORKED].examined == 14
