"""Known failure modes of comparable systems, each as a test.

Covered elsewhere, and not again here: SIGTERM, a killed trainer, a killed engine, a short outage of the database
(`test_kills.py`); one that outlasts a verb's patience (`tests/shared/test_retry.py`); engines that answer 500 or hang, scorers
that crash (`tests/sampler/test_episode.py`); prefetched data of a killed trainer (`tests/shared/test_store_records.py`).
"""

import asyncio
import random
import signal
import sys
from pathlib import Path

import pytest

from sampler.core.episode.episode import play
from sampler.settings import SamplerConfig
from scripts.bench.sampler_chat import Chat
from shared.documents import Record
from shared.documents.states import DataStatus, RecordStatus, TaskStatus
from shared.processes.mongod import free_port
from shared.store import Store
from shared.tokens.flatten import tree_of
from tandem.audit.run import audit
from tests.sampler.builders import make_dispatch, play_episode
from tests.sampler.episodes import TEMPLATE, resources, samples
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks, make_data, make_task
from tests.system.processes import MODEL, Run

CONFIG = SamplerConfig(run="r", db_connection_string="x", model_name_or_path=Path("."))
LARGEST_DOCUMENT = 16 * 2**20
OUTAGE_S = 12.0  # longer than a lease of the test (3 s) and than the driver looks for a server (10 s) before a verb tries again


# ---------------------------------------------------------------------- many at once


async def test_simultaneous_finishes_complete_every_group_with_all_of_its_scores(store: Store) -> None:
    """32 coroutines, episodes without length: a whole-document save left 11 of 12 groups stuck."""
    await import_tasks(store, 12, num_generations=8)
    given: dict[tuple[str, int], float] = {}

    async def worker(name: str) -> None:
        while (got := await claim(store, name)) is not None:
            given[got.task.id, got.traj_id] = score = random.random()
            await store.tasks.finish_slot(got, score)

    await asyncio.gather(*(worker(f"w{i}") for i in range(32)))
    tasks = [await store.tasks.get(task_id) for task_id in {task_id for task_id, _ in given}]
    assert len(tasks) == 12
    for task in tasks:
        assert task is not None
        assert task.status == "completed"
        assert [s.score for s in task.slots] == [given[task.id, k] for k in range(8)]


async def test_64_samplers_find_64_open_slots_and_none_finds_nothing(store: Store) -> None:
    await import_tasks(store, 8, num_generations=8)
    got = await asyncio.gather(*(claim(store, f"w{i}") for i in range(64)))
    assert len({(c.task.id, c.traj_id) for c in got if c is not None}) == 64


# ---------------------------------------------------------------------- token for token


async def settled_data(store: Store, ids: list[int]) -> tuple[list[int], list[float]]:
    """Ids and log-probs that are trained of one-turn episodes in which the engine sampled `ids`."""
    await import_tasks(store, 1, num_generations=2)
    async with resources(store, samples(ids), max_turns=1, max_new_tokens=2000) as shared:
        for _ in range(2):
            assert await play(Chat(shared, await claim(store))) is not None
    await settle_next(store, "w", CONFIG)
    data = (await store.data.find({}))[0]
    tree = tree_of(data, (await store.records.tokens_of([data.id]))[data.id])
    return tree.token_ids_N[tree.trained_N].tolist(), tree.logprobs_N[tree.trained_N].tolist()


async def test_a_reply_that_loops_for_500_tokens_is_trained_token_for_token(store: Store) -> None:
    loop = TEMPLATE.encode("again ")
    ids = (loop * 500)[:500]
    trained, logprobs = await settled_data(store, ids)
    assert trained == ids
    assert logprobs == pytest.approx([-i / 100 for i in ids], rel=1e-6)


async def test_tokens_that_do_not_survive_decoding_and_encoding_are_trained_unchanged(store: Store) -> None:
    """1,000 single characters that the tokenizer would merge: 1,001 of 1,001 with the end of the turn, not 50."""
    letters = [TEMPLATE.token_id(letter) for letter in "tool"]
    ids = [i for i in letters if i is not None] * 250 + [TEMPLATE.token_id("<|im_end|>") or 0]
    again = TEMPLATE.encode(TEMPLATE.decode(ids))
    assert len(again) < len(ids) == 1001, "the tokenizer must disagree, or this shows nothing"
    trained, _ = await settled_data(store, ids)
    assert trained == ids


# ---------------------------------------------------------------------- sizes


async def test_a_record_of_160000_generated_tokens_fits_with_room_to_spare(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    for _ in range(2):
        got = await claim(store)
        await store.records.start(got, "w")
        ids = list(range(1000, 21000))
        dispatches = [make_dispatch(got.record_id, 0, [1], ids)]
        dispatches += [
            make_dispatch(got.record_id, turn, [5], ids, parent=turn - 1, shared_length=turn * 20001)
            for turn in range(1, 8)
        ]
        for dispatch in dispatches:
            await store.records.open_dispatch(dispatch)
        await store.records.close_dispatches(dispatches)
        await store.records.move(got.record_id, RecordStatus.SCORED, {"traj": [d.id for d in dispatches]})
        await store.tasks.finish_slot(got, float(got.traj_id))
    await settle_next(store, "w", CONFIG)
    assert {d.num_trained_tokens for d in await store.data.find({})} == {160_000}
    largest = [await largest_document(store, name) for name in ("tasks", "records", "record_data")]
    assert max(largest) < LARGEST_DOCUMENT / 4, largest


async def largest_document(store: Store, collection: str) -> int:
    cursor = await store.database[collection].aggregate(
        [{"$group": {"_id": None, "largest": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    )
    [row] = await cursor.to_list()
    return int(row["largest"])


async def test_among_20000_records_every_question_of_an_episode_uses_an_index(store: Store) -> None:
    await fill(store, 20_000)
    await store.database.command("profile", 2)
    for score in (0.0, 1.0):
        await play_episode(store, await claim(store), score)
    await settle_next(store, "w", CONFIG)
    await settle_next(store, "w", CONFIG)
    assert len(await store.data.ready_groups("main", 4)) == 1
    await store.database.command("profile", 0)
    where = {"ns": {"$regex": r"\.(tasks|records|dispatched_sampling_tasks)$"}, "op": {"$ne": "insert"}}
    entries = await store.database["system.profile"].find(where).to_list()
    assert len(entries) >= 12
    looked_at = {f"{e['op']} {e['ns']} {e.get('planSummary')}": e.get("docsExamined", 0) for e in entries}
    assert not [name for name in looked_at if "COLLSCAN" in name], looked_at
    assert max(looked_at.values()) <= 8, looked_at


async def fill(store: Store, records: int) -> None:
    """Settled groups of two and their records, all of them trained, and one task that is open."""
    tasks = [
        make_task(seq).model_copy(update={"status": TaskStatus.SETTLED}).to_mongo() | {"_id": f"main:train:0:t{seq}"}
        for seq in range(records // 2)
    ]
    await store.database["tasks"].insert_many(tasks)
    documents = []
    for task in tasks:
        for k in range(2):
            rid = f"{task['_id']}:{k}:1"
            record = Record(
                id=rid, task=task["_id"], traj_id=k, attempt=1, tid=task["tid"], split="train", policy="main",
                source="test", worker="w", status=RecordStatus.READY,
            )  # fmt: skip
            documents.append(record.to_mongo())
    await store.database["records"].insert_many(documents)
    trained = make_data(make_task(0), 0, status=DataStatus.TRAINED).to_mongo()
    await store.database["record_data"].insert_many(
        [{**trained, "_id": d["_id"], "task": d["task"]} for d in documents]
    )
    await store.tasks.insert_new([make_task(records)])


# ---------------------------------------------------------------------- processes


class Stubbed(Run):
    """Samplers and a keeper against the stub engine: light enough for a dozen processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        del self.sampler_flags["mcp_manager_url"]
        self.sampler_flags |= {
            "sampler": "scripts.bench.sampler_chat:Chat",
            "max_turns": "3",
            "open_all_tasks": "true",
            "max_concurrent_episodes": "3",
            "adaptive_concurrency": "false",
        }

    def start_engine(self, token_ms: int) -> None:
        port = free_port()
        engine = [sys.executable, "-m", "scripts.bench.stub_engine", "--model-path", str(MODEL), "--port", str(port)]
        self._start("engine", [*engine, "--turns", "3", "--token-ms", str(token_ms)])
        keeper = [sys.executable, "-m", "sampler.engine.keeper", *self._common()]
        self._start("keeper", [*keeper, "--engine_url", f"http://127.0.0.1:{port}"])


async def import_groups(run: Run) -> None:
    async with Store.open(run.mongod.connection_string, run.name) as store:
        await import_tasks(store, 4, num_generations=8)


async def groups_settled(store: Store) -> bool:
    return (await store.tasks.count_by_status())["train"] == {"settled": 4}


async def assert_complete(run: Run) -> None:
    """Every group has its eight scores and eight records that can be trained, and nothing is left running."""
    async with Store.open(run.mongod.connection_string, run.name) as store:
        slots = await store.tasks.count_slots()
        assert slots == {"scored": 32, "failures": slots["failures"]}
        assert len(await store.data.find({"status": "ready"})) == 32
        assert "running" not in await store.records.count_by_status()
        assert await store.database["dispatched_sampling_tasks"].count_documents({"status": "running"}) == 0
        report = await audit(store)
        assert report.ok, report


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_12_samplers_killed_with_4_groups_of_8_running_cost_only_time(tmp_path: Path) -> None:
    with Stubbed(tmp_path) as run:
        await import_groups(run)
        run.start_engine(token_ms=4000)  # 80 s a turn: no episode is over before the last sampler has begun
        for i in range(12):
            run.start_sampler(f"sampler{i}")

        async def all_leased(store: Store) -> bool:
            return (await store.tasks.count_slots()).get("leased", 0) == 32

        await run.until("32 episodes in flight", all_leased)
        for i in range(12):
            run.end(f"sampler{i}", signal.SIGKILL)
        run.end("engine", signal.SIGKILL)
        run.end("keeper", signal.SIGKILL)
        run.start_engine(token_ms=1)
        run.sampler_flags["max_concurrent_episodes"] = "16"
        run.start_sampler("heir")
        await run.until("every group to be settled", groups_settled)
        assert run.end("heir") == 0, run.log("heir")
        await assert_complete(run)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_an_outage_of_mongod_that_outlasts_the_leases_leaks_nothing(tmp_path: Path) -> None:
    """mongod is killed with -9 and comes back on the same data and port: every lease has ended, every verb has begun anew."""
    with Stubbed(tmp_path) as run:
        run.sampler_flags |= {"lease_s": "3", "renew_s": "1"}
        await import_groups(run)
        run.start_engine(token_ms=50)  # 1 s a turn
        run.start_sampler("sampler0")
        run.start_sampler("sampler1")

        async def some_scored(store: Store) -> bool:
            return (await store.tasks.count_slots()).get("scored", 0) >= 3

        await run.until("episodes scored, others in flight", some_scored)
        assert run.mongod.process is not None
        run.mongod.process.kill()
        run.mongod.process.wait(60)
        await asyncio.sleep(OUTAGE_S)
        run.mongod.start()
        await run.until("every group to be settled", groups_settled)
        for name in ("sampler0", "sampler1"):
            assert run.end(name) == 0, run.log(name)
        await assert_complete(run)
