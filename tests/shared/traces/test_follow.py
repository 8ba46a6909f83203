"""`tandem trace export --follow` sends every group once, as it is settled, and says at Ctrl-C where to go on."""

import asyncio
import signal
from collections import Counter
from datetime import timedelta

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import claim, import_tasks
from tests.shared.cli.test_cli_processes import spawn
from tests.shared.episodes import play, settle, whole_run
from tests.shared.traces.receiver import Receiver, attributes, receiver


def sent(received: Receiver) -> Counter[str]:
    """{record: how often}."""
    return Counter(str(attributes(span)["tandem.record"]) for span in received.spans if not span.parent_span_id)


async def until(received: Receiver, records: int) -> None:
    for _ in range(600):
        if len(sent(received)) >= records:
            return
        await asyncio.sleep(0.2)  # until the next look
    raise AssertionError(f"{records} records were expected: {sent(received)}")


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
