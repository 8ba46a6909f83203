"""Late writes to tasks: slots, feedback, settlement, evaluation rounds."""

from shared.documents import Feedback, Task
from shared.documents.scoring import GroupScore
from shared.store import Store
from tests.shared.builders import claim, import_tasks, let_time_pass, make_task
from tests.shared.episodes import play, play_and_wait, settle, train
from tests.shared.late_write_rows.rows import Late, completed, held, row


@row("tasks.insert_new")
async def _(store: Store, late: Late) -> None:
    await late(store.tasks.insert_new([make_task(seq) for seq in range(2)]))
    await claim(store)


@row("tasks.finish_slot", "records.start", "records.open_dispatch", "records.close_dispatches", "records.move")
async def _(store: Store, late: Late) -> None:
    await import_tasks(store, 1)
    while (got := await claim(store)) is not None:
        await late(play(store, got, float(got.traj_id)))
    await settle(store)
    await train(store, 1)


@row("tasks.retry_slot")
async def _(store: Store, late: Late) -> None:
    await late(store.tasks.retry_slot(await held(store), "engine down", delay_s=0, max_failures=3))
    await claim(store)


@row("tasks.release_slot")
async def _(store: Store, late: Late) -> None:
    await late(store.tasks.release_slot(await held(store)))
    await claim(store)


@row("tasks.await_feedback", "feedback.give", "feedback.write_scores")
async def _(store: Store, late: Late) -> None:
    """The group is settled and trained with the feedback."""
    await import_tasks(store, 1)
    while (got := await claim(store)) is not None:
        record = await late(play_and_wait(store, got, 0.5))
        await late(store.feedback.give(record, Feedback(turn=1, score=0.25)))
        task = await late(store.feedback.give(record, Feedback(score=float(got.traj_id), comment="$slots")))
        await late(store.feedback.write_scores(task))
    await settle(store)
    await train(store, 1)


@row("tasks.await_feedback ")
async def _(store: Store, late: Late) -> None:
    """Its deadline has ended the wait."""
    await late(store.tasks.await_feedback(await held(store), 60, score_without=None))
    await let_time_pass(store)
    await store.feedback.end_overdue("main")


@row("feedback.give ")
async def _(store: Store, late: Late) -> None:
    """The deadline comes before the feedback that is held back."""
    record = await play_and_wait(store, await held(store))
    await let_time_pass(store)
    await late(store.feedback.give(record, Feedback(score=1.0)))
    await store.feedback.end_overdue("main")


@row("feedback.end_overdue")
async def _(store: Store, late: Late) -> None:
    """Of two episodes one has a score without feedback; the other fails."""
    await import_tasks(store, 1)
    for score in (None, 0.5):
        await play_and_wait(store, await claim(store), score)
    await let_time_pass(store)
    await store.feedback.write_scores(await late(store.feedback.end_overdue("main")))
    await settle(store)


@row("tasks.finish_settlement", "records.settle_group", "records.set_advantages", "data.write_group")
async def _(store: Store, late: Late) -> None:
    await completed(store)
    await late(settle(store))
    await train(store, 1)


@row("tasks.finish_settlement ")
async def _(store: Store, late: Late) -> None:
    task = await completed(store)
    await late(store.tasks.finish_settlement(task, "abandoned: no reason", abandoned=True))


@row("group_scores.begin")
async def _(store: Store, late: Late) -> None:
    """Another sampler has begun by then."""
    task = await leased_group(store, "a")
    assert await late(store.group_scores.begin(task, "a")) == 1
    await store.group_scores.postpone(task.id, 1, "a", delay_s=0)
    task = await leased_group(store, "b")
    assert await store.group_scores.begin(task, "b") == 2


@row("group_scores.postpone")
async def _(store: Store, late: Late) -> None:
    """The same sampler has begun again by then."""
    task = await leased_group(store, "a")
    await store.group_scores.begin(task, "a")
    assert (
        await late(store.group_scores.postpone(task.id, 1, "a", delay_s=0, error="no judge", max_failures=8))
        is not None
    )
    assert await store.group_scores.begin(await leased_group(store, "a"), "a") == 2


@row("group_scores.keep", "group_scores.write_records")
async def _(store: Store, late: Late) -> None:
    """Another sampler's scores of the same group do not replace the first ones, nor does a late write after settlement."""
    task = await leased_group(store, "a")
    one = GroupScore(scorer="s", metric="score_s", weight=1.0, values=[0.5, 0.25], reasons=["x", None])
    assert await store.group_scores.begin(task, "a") == 1
    kept = await late(store.group_scores.keep(task, 1, [one], {0: 0.5, 1: 1.25}))
    assert [slot.score for slot in kept.slots] == [0.5, 1.25]
    other = one.model_copy(update={"values": [0.0, 0.0]})
    assert await store.group_scores.keep(task, 1, [other], {0: 0.0, 1: 1.0}) == kept
    await late(store.group_scores.write_records(kept))
    await settle(store)


async def leased_group(store: Store, worker: str) -> Task:
    if await store.tasks.get("main:train:0:t0") is None:
        await completed(store)
    task = await store.tasks.claim_settlement(worker, policy="main", lease_s=60, left=[])
    assert task is not None
    return task


@row("tasks.skip_next_epoch")
async def _(store: Store, late: Late) -> None:
    task = await completed(store)
    easy = make_task(0, tid="t0", epoch=1).model_copy(update={"seq": 1})
    payload = easy.payload.model_copy(update={"max_pass_rate": 0.1})
    await store.tasks.insert_new([easy.model_copy(update={"payload": payload})])
    await late(store.tasks.skip_next_epoch(task))


@row("evaluation.queue_round")
async def _(store: Store, late: Late) -> None:
    await store.tasks.insert_new([make_task(seq, split="eval") for seq in range(2)])
    await late(store.evaluation.queue_round("main", 3))
    await claim(store, split="eval", served_versions=[3])


@row("evaluation.withdraw")
async def _(store: Store, late: Late) -> None:
    await store.tasks.insert_new([make_task(seq, split="eval") for seq in range(2)])
    await store.evaluation.queue_round("main", 3)
    await late(store.evaluation.withdraw("main", [3]))
    await store.evaluation.queue_round("main", 4)


@row("resettling.write")
async def _(store: Store, late: Late) -> None:
    """Settled since it was written."""
    await completed(store)
    await late(store.resettling.write(await store.resettling.group("main:train:0:t0")))
    await settle(store)


@row("unforeseen.settlement_failed")
async def _(store: Store, late: Late) -> None:
    """Another settler has the group by then, and settles it."""
    await completed(store)
    group = await store.tasks.claim_settlement("a", policy="main", lease_s=60)
    assert group is not None
    assert not await late(store.unforeseen.settlement_failed(group, "a bug $x", delay_s=0, max_failures=3))
    await settle(store)


@row("unforeseen.settlement_failed ")
async def _(store: Store, late: Late) -> None:
    """It was the last that is allowed: the group is abandoned."""
    await completed(store)
    group = await store.tasks.claim_settlement("a", policy="main", lease_s=60)
    assert group is not None
    assert await late(store.unforeseen.settlement_failed(group, "a bug", delay_s=0, max_failures=1))


@row("tasks.retry_slot ")
async def _(store: Store, late: Late) -> None:
    """It met a bug, and its task is set aside."""
    await late(store.tasks.retry_slot(await held(store), "a bug", delay_s=0, max_failures=3, bugs_at_most=1))
