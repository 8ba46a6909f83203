"""What each index for reading costs the database per episode, with it against without, in one run: bytes of the journal and
writes of records and keys (which are the same on a busy machine), and mongod's processor time.

    python -m scripts.bench.indexes --episodes 2000 --rounds 5

Each round plays the same episodes (claim, record, turns with a tool call, score) once without the indexes of `READERS`, once with
each, and once with all, in a new database each; the order changes from round to round. The figure is the median over the
rounds. `--quick`: the smallest sizes.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from scripts.bench.results import add_json, parsed, show, write_json
from shared.documents import DispatchedSamplingTask, SampledResponse, Slot, Task, TaskPayload, ToolCallResult, task_id
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus, RecordStatus, Termination
from shared.names import DEFAULT_POLICY, TRAIN_SPLIT
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.store.records import SEARCHED

WITHOUT, ALL = "none of these", "all"
READERS = {
    **{f"records: {field}": ("records", f"by {field}") for field in SEARCHED},
    "records: finished_at": ("records", "finished"),
    "tasks: settled_at": ("tasks", "settled"),
    "turns: failed ones": ("dispatched_sampling_tasks", "failed"),
    "turns: tool errors": ("dispatched_sampling_tasks", "tool errors"),
}
GENERATIONS = 8


async def main(options: argparse.Namespace) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in (WITHOUT, *READERS, ALL)}
    written: dict[str, list[tuple[int, int]]] = {name: [] for name in seconds}
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder)) as server:
        assert server.process is not None
        for number in range(options.rounds):
            names = list(seconds)
            random.Random(number).shuffle(names)
            for name in names:
                async with Store.open(server.connection_string, f"indexes-{number}-{names.index(name)}") as store:
                    await _drop(store.database, name)
                    before, writes = _processor_s(server.process.pid), await _writes(store)
                    await _play(store, options.episodes, options.turns)
                    seconds[name].append(_processor_s(server.process.pid) - before)
                    since = await _writes(store)
                    written[name].append((since[0] - writes[0], since[1] - writes[1]))
                    await store.client.drop_database(store.run)
    base_bytes, base_writes = _medians(written[WITHOUT])
    rows = []
    for name, spent in seconds.items():
        num_bytes, num_writes = _medians(written[name])
        rows.append(
            {
                "index": name,
                "journal bytes per episode": num_bytes / options.episodes,
                "bytes ratio": num_bytes / base_bytes,
                "writes per episode": num_writes / options.episodes,
                "writes ratio": num_writes / base_writes,
                "mongod ms per episode": 1000 * statistics.median(spent) / options.episodes,
                "ms ratio": statistics.median(spent) / statistics.median(seconds[WITHOUT]),
            }
        )
    return rows


def _medians(found: list[tuple[int, int]]) -> tuple[float, float]:
    return statistics.median(one for one, _ in found), statistics.median(one for _, one in found)


async def _writes(store: Store) -> tuple[int, int]:
    """(bytes of the journal before compression, calls that write or remove a record or a key)."""
    engine = (await store.client.admin.command("serverStatus"))["wiredTiger"]
    cursor = engine["cursor"]
    calls = sum(cursor[f"cursor {kind} calls"] for kind in ("insert", "update", "modify", "remove"))
    return int(engine["log"]["log bytes of payload data"]), int(calls)


async def _drop(database: AsyncDatabase[dict[str, Any]], kept: str) -> None:
    for name, (collection, index) in READERS.items():
        if kept not in (name, ALL):
            await database[collection].drop_index(index)


async def _play(store: Store, episodes: int, turns: int) -> None:
    groups = -(-episodes // GENERATIONS)
    await store.tasks.insert_new([_task(seq) for seq in range(groups)])
    rng = random.Random(0)
    for _ in range(episodes):
        claim = await store.tasks.claim_slot(
            "bench", policy=DEFAULT_POLICY, split=TRAIN_SPLIT, lease_s=600.0, seq_limit=None, max_failures=8
        )
        assert claim is not None
        record = await store.records.start(claim, "bench")
        closing: list[DispatchedSamplingTask] = []
        for turn in range(turns):
            dispatch = _turn(record.id, turn, rng)
            await store.records.open_dispatch(dispatch, closing)
            closing = [dispatch]
        await store.records.close_dispatches(closing)
        score = float(rng.random() < 0.5)
        values = {"score": score, "termination": rng.choice(list(Termination)).value, "num_turns": turns}
        await store.records.move(record.id, RecordStatus.SCORED, values)
        await store.tasks.finish_slot(claim, score)
    while (task := await store.tasks.claim_settlement("bench", policy=DEFAULT_POLICY, lease_s=600)) is not None:
        await store.tasks.finish_settlement(task, "ready", abandoned=False)


def _task(seq: int) -> Task:
    tid = f"question-{seq:06}"
    return Task(
        id=task_id(DEFAULT_POLICY, TRAIN_SPLIT, 0, tid),
        tid=tid,
        split=TRAIN_SPLIT,
        epoch=0,
        policy=DEFAULT_POLICY,
        seq=seq,
        source=f"source-{seq % 7}",
        payload=TaskPayload(query="What is 47+38?", answer="85"),
        num_generations=GENERATIONS,
        slots=[Slot(traj_id=number, free_at=EPOCH) for number in range(GENERATIONS)],
        free_at=EPOCH,
    )


def _turn(record: str, turn: int, rng: random.Random) -> DispatchedSamplingTask:
    """Every tenth call is answered with an error, and every twentieth reply cannot be parsed."""
    wrong = rng.random() < 0.05
    call = ToolCallResult(
        name="calculator", arguments={"e": "47+38"}, result="85", is_error=rng.random() < 0.1, duration_s=0.1
    )
    return DispatchedSamplingTask(
        id=f"{record}:{turn}",
        record=record,
        turn=turn,
        parent=None,
        shared_length=0,
        prompt_ids=pack_ints(list(range(200))),
        messages=[{"role": "user", "content": "What is 47+38? " * 10}],
        tools_hash="",
        sampling_params={"temperature": 1.0},
        response=SampledResponse(
            text="<think>" + "so " * 60,
            message={"role": "assistant"},
            output_ids=pack_ints(list(range(100))),
            output_logprobs=pack_floats([-0.5] * 100),
            finish_reason="stop",
        ),
        weight_versions=[(0, 100)],
        tool_calls=[call],
        status=DispatchStatus.FORMAT_ERROR if wrong else DispatchStatus.COMPLETED,
        error="the call is no JSON" if wrong else None,
    )


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    add_json(parser)
    given = parsed(parser, episodes=16, turns=2, rounds=1)
    found = asyncio.run(main(given))
    show(found, "indexes for reading", decimals=3)
    write_json(given.json, found)
