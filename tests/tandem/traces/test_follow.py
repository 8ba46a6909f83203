"""`tandem trace export --follow` sends every group once, as it is settled, and says at Ctrl-C where to go on."""

import asyncio
import signal
from collections import Counter
from datetime import timedelta

import pytest

from shared.documents.run import Admission, SavedCheckpoint, TrainedStep, step_id
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import play, settle, whole_run
from tests.tandem.commands.test_cli_processes import spawn
from tests.tandem.traces.receiver import Receiver, attributes, receiver


def sent(received: Receiver) -> Counter[str]:
    """{record: how often}."""
    return Counter(str(attributes(span)["tandem.record"]) for span in received.spans if not span.parent_span_id)


async def until(received: Receiver, records: int) -> None:
    for _ in range(600):
        if len(sent(received)) >= records:
            return
        await asyncio.sleep(0.2)  # until the next look
    raise AssertionError(f"{records} records were expected: {sent(received)}")


@pytest.mark.thorough
async def test_groups_are_sent_as_they_are_settled_each_once_also_one_that_is_seen_late(
    mongod: Mongod, store: Store
) -> None:
    await whole_run(store)
    with (
        receiver() as received,
        spawn("trace", "export", store.run, "--otlp", received.url, "--follow", uri=mongod.connection_string) as child,
    ):
        await until(received, 4)
        await import_tasks(store, 4, num_generations=1)  # t0 and t1 are there
        while (held := await claim(store)) is not None:
            await play(store, held, 0.5)
        await settle(store)
        await until(received, 6)
        tasks = store.database["tasks"]
        late = await tasks.find_one({"_id": "main:train:0:t3"})
        assert late is not None
        # A copy that was settled a little earlier than what was sent last, as from another sampler.
        other = {**late, "_id": "main:train:0:t9", "tid": "t9", "seq": 9}
        other["settled_at"] = late["settled_at"] - timedelta(seconds=1)
        one = await store.database["records"].find_one({"task": late["_id"]})
        assert one is not None
        await store.database["records"].insert_one({**one, "_id": "main:train:0:t9:0:1", "task": other["_id"]})
        await tasks.insert_one(other)
        await until(received, 7)
        await asyncio.sleep(5)  # two more looks, which find what was sent already
        child.send_signal(signal.SIGINT)
        out, err = await asyncio.to_thread(child.communicate, timeout=60)
    assert set(sent(received).values()) == {1}
    assert child.returncode == 130, err
    assert f"the last group was settled at {late['settled_at'].isoformat()}" in out.replace("\n", "")
    assert "7 episodes" in out


async def trained_by(store: Store, policy: str, step: int, generation: int) -> None:
    """A new task's episode is what the step of this policy's trainer trained."""
    number = await store.database["tasks"].count_documents({})
    await import_tasks(store, number + 1, num_generations=1)  # those of before are there
    held = await claim(store)
    await play(store, held, 0.5)
    await settle(store)
    name = step_id(policy, step, generation)
    marks = {"policy": policy, "trained_steps": [step]}
    await store.database["record_data"].update_one({"record": held.record_id}, {"$set": marks})
    groups = [(held.record_id, 1)]
    await store.steps.add(TrainedStep(id=name, policy=policy, step=step, trainer_generation=generation, groups=groups))


async def test_steps_are_followed_by_policy_and_again_after_a_resume(mongod: Mongod, store: Store) -> None:
    await store.runs.ensure()
    budget = Admission(groups_per_step=1, max_staleness=0)
    for policy in ("main", "other"):
        await store.runs.start_trainer(policy, budget)
    for step in (1, 2, 3):
        await trained_by(store, "main", step, 1)
    with receiver() as received:
        arguments = ("trace", "export", store.run, "--otlp", received.url, "--step", "2", "--follow")
        with spawn(*arguments, uri=mongod.connection_string) as child:
            await until(received, 2)
            await trained_by(store, "other", 1, 1)  # before the first step that was asked for
            await trained_by(store, "other", 2, 1)  # its trainer is slower
            await until(received, 3)
            await store.runs.start_trainer("main", budget, checkpoint=SavedCheckpoint(step=1, folder="c"))
            await trained_by(store, "main", 2, 2)
            await until(received, 4)
            child.send_signal(signal.SIGINT)
            _, err = await asyncio.to_thread(child.communicate, timeout=60)
    assert child.returncode == 130, err
    tids = sorted(name.split(":")[3] for name in sent(received))
    assert tids == ["t1", "t2", "t4", "t5"], "t0 and t3 were trained by step 1"
