"""The rows of tests/shared/test_late_writes.py: a verb whose write may come late, and the events after it."""

from collections.abc import Awaitable, Callable
from typing import Any

from shared.documents import Claim, DataClaim, Feedback, Task
from shared.documents.agent_sessions import AgentSession, ClientRequest, SessionEnd
from shared.documents.offers import BroadcastOffer, Joined
from shared.documents.run import Admission, SavedCheckpoint, TrainedStep, TrainerEnd, step_id
from shared.documents.states import DataStatus, DispatchStatus, LeaseKind, OfferState, RecordStatus
from shared.store import Store
from tests.shared.builders import claim, import_tasks, let_time_pass, make_data, make_task
from tests.shared.episodes import SCHEMAS, announce, make_dispatches, play, play_and_wait, settle, train, whole_run

Late = Callable[[Awaitable[Any]], Awaitable[Any]]
Row = Callable[[Store, Late], Awaitable[None]]
ADMISSION = Admission(groups_per_step=1, max_staleness=0)
OFFER = BroadcastOffer(
    address="a", port=1, group="g", backend="gloo", bucket_bytes=1, join_s=1, limit_s=1, state=OfferState.OPEN
)
RECORD = "main:train:0:t0:0:1"
FIRST, SECOND = DataClaim(trainer_generation=1, step=1), DataClaim(trainer_generation=2, step=1)
ROWS: dict[str, Row] = {}


def row(*verbs: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(verbs, function))
        return function

    return add


async def completed(store: Store) -> Task:
    await import_tasks(store, 1)
    while (held := await claim(store)) is not None:
        await play(store, held, float(held.traj_id))
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    return task


async def held(store: Store) -> Claim:
    await import_tasks(store, 1)
    found: Claim = await claim(store)
    return found


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


@row("records.set_turn_scores")
async def _(store: Store, late: Late) -> None:
    await completed(store)
    await late(store.records.set_turn_scores({f"{RECORD}:0": 0.5}))
    await settle(store)


@row("records.move ")
async def _(store: Store, late: Late) -> None:
    got = await held(store)
    await store.records.start(got, "w")
    await late(store.records.move(got.record_id, RecordStatus.FAILED, {"error": "engine down"}))
    await store.tasks.retry_slot(got, "engine down", delay_s=0, max_failures=3)


@row("sessions.begin", "sessions.open_turn", "sessions.save_reply", "sessions.end")
async def _(store: Store, late: Late) -> None:
    """An attempt of an agent elsewhere: a turn, its reply, the end, and a second end, which changes nothing."""
    got = await held(store)
    client = ClientRequest(identity="i", cause="first", asked_by="a")
    opened = make_dispatches(got.record_id)[0].model_copy(update={"client": client})
    asked = opened.model_copy(update={"response": None, "status": DispatchStatus.RUNNING, "weight_versions": []})
    await late(store.sessions.begin(got, "w", AgentSession(key_hash="k")))
    await late(store.sessions.open_turn(asked))
    await late(store.sessions.save_reply(opened))
    await late(store.sessions.end(got.record_id, SessionEnd(score=1.0)))
    await late(store.sessions.end(got.record_id, SessionEnd(score=0.0)))
    await store.records.close_dispatches([opened])


@row("data.claim", "data.commit_step", "steps.add")
async def _(store: Store, late: Late) -> None:
    """Where data may be used twice, it is ready again after its first step."""
    await store.data.write_group([make_data(make_task(0), k) for k in range(2)])
    await late(train(store, 1, max_trained_count=2))
    await train(store, 2, max_trained_count=2)


@row("data.claim ")
async def _(store: Store, late: Late) -> None:
    await store.data.write_group([make_data(make_task(0), k) for k in range(2)])
    await late(store.data.claim([RECORD], FIRST))
    await store.data.commit_step("main", FIRST, max_trained_count=2)


@row("data.commit_step ")
async def _(store: Store, late: Late) -> None:
    """Another trainer has taken the step back, and borrowed the records for it again."""
    await store.data.write_group([make_data(make_task(0), k) for k in range(2)])
    await store.data.claim([RECORD], FIRST)
    await late(store.data.commit_step("main", FIRST, max_trained_count=1))
    await store.data.rewind("main", 0, max_trained_count=1)
    await store.data.claim([RECORD], SECOND)


@row("data.give_back")
async def _(store: Store, late: Late) -> None:
    await store.data.write_group([make_data(make_task(0), k) for k in range(2)])
    await store.data.claim([RECORD], FIRST)
    await late(store.data.give_back("main", FIRST))
    await store.data.claim([RECORD], SECOND)


@row("data.set_aside")
async def _(store: Store, late: Late) -> None:
    """A resume has looked at it again, and trains it."""
    await store.data.write_group([make_data(make_task(0), k) for k in range(2)])
    await late(store.data.set_aside([RECORD], DataStatus.STALE, "too old"))
    await store.data.rewind("main", 0, max_trained_count=1)
    await store.data.claim([RECORD], SECOND)


@row("data.release_claims")
async def _(store: Store, late: Late) -> None:
    await store.data.write_group([make_data(make_task(0), k) for k in range(2)])
    await store.data.claim([RECORD], FIRST)
    await late(store.data.release_claims("main", 2))
    await store.data.claim([RECORD], SECOND)


@row("data.rewind")
async def _(store: Store, late: Late) -> None:
    """Its marks are of the steps that the resumed trainer has taken since."""
    await whole_run(store, tasks=1)
    await late(store.data.rewind("main", 0, max_trained_count=1))
    await train(store, 1)


@row("runs.ensure")
async def _(store: Store, late: Late) -> None:
    await late(store.runs.ensure())
    await store.runs.start_trainer("main", ADMISSION)


@row("runs.start_trainer")
async def _(store: Store, late: Late) -> None:
    await late(
        store.runs.start_trainer("main", ADMISSION, checkpoint=SavedCheckpoint(step=2, folder="x"), config={"a": 1})
    )
    await store.runs.start_trainer("main", ADMISSION, config={"a": 2})


@row("runs.end_trainer")
async def _(store: Store, late: Late) -> None:
    """The one that goes on has ended too: what is told of the first comes late."""
    for trainer_generation in (1, 2):
        await store.runs.start_trainer("main", ADMISSION)
        await late(
            store.runs.end_trainer(
                "main", TrainerEnd(trainer_generation=trainer_generation, step=2, reason="told to stop")
            )
        )
    await store.runs.start_trainer("main", ADMISSION)


@row("tool_schemas.keep")
async def _(store: Store, late: Late) -> None:
    await late(store.tool_schemas.keep(SCHEMAS))


@row("settings.keep")
async def _(store: Store, late: Late) -> None:
    await late(store.settings.keep("sampler", {"temperature": 1.0}, "first"))
    await store.settings.keep("sampler", {"temperature": 0.5}, "second")
    await store.settings.keep("sampler", {"temperature": 1.0}, "third")


@row("steps.note_metrics")
async def _(store: Store, late: Late) -> None:
    """The step is taken again, by the next start."""
    for trainer_generation in (1, 2):
        identity = step_id("main", 1, trainer_generation)
        await store.steps.add(
            TrainedStep(id=identity, policy="main", step=1, trainer_generation=trainer_generation, groups=[])
        )
        await late(store.steps.note_metrics(identity, {"loss/loss": 0.5 * trainer_generation}))


@row("runs.note_checkpoint")
async def _(store: Store, late: Late) -> None:
    trainer_generation = await store.runs.start_trainer("main", ADMISSION)
    await late(store.runs.note_checkpoint("main", trainer_generation, SavedCheckpoint(step=2, folder="x")))
    await store.runs.note_checkpoint("main", trainer_generation, SavedCheckpoint(step=4, folder="x"))


@row("versions.announce", "versions.ensure_first", "versions.mark_pruned")
async def _(store: Store, late: Late) -> None:
    await late(store.versions.ensure_first("main", "/first", {}))
    await late(announce(store, 1))
    await announce(store, 2)
    await late(store.versions.mark_pruned("main", [1]))


@row("versions.fence", "versions.withdraw_after")
async def _(store: Store, late: Late) -> None:
    for step in range(3):
        await announce(store, step)
    await late(store.versions.fence("main", 2, 1))
    await late(store.versions.withdraw_after("main", 1, 2))
    await store.versions.announce("main", 2, "/again", {}, trainer_generation=2)


@row("versions.join_broadcast", "versions.close_broadcast", "versions.end_broadcast", "versions.fail_broadcasts")
async def _(store: Store, late: Late) -> None:
    for number in range(2):
        await store.versions.announce("main", number, f"/{number}", {}, offer=OFFER, trainer_generation=1)
        await late(store.versions.join_broadcast("main", number, Joined(service=f"e{number}", ranks=1)))
    await late(store.versions.close_broadcast("main", 0))
    await late(store.versions.end_broadcast("main", 0, OfferState.SENT))
    await late(store.versions.fail_broadcasts("main", 2))
    await store.versions.announce("main", 2, "/2", {}, offer=OFFER, trainer_generation=2)


@row(
    *("leases.ensure", "leases.claim", "leases.take", "leases.release"),
    *("leases.occupy", "leases.confirm", "leases.wake"),
)
async def _(store: Store, late: Late) -> None:
    """The device has gone to a second holder, for whom the engine sleeps again."""
    device = (await late(store.leases.ensure(LeaseKind.GPU, "h:0"))).id
    await late(store.leases.occupy(device, "keeper", "http://e", 600, asleep=True))
    await late(store.leases.wake(device, "keeper", 0, 600))
    for holder in ("first", "second"):
        claim = await late(store.leases.claim(device, holder, 600))
        await late(store.leases.confirm(device, "keeper", claim.attempt))
        await late(store.leases.take(claim))
        if holder == "first":
            await late(store.leases.release(claim))
            await late(store.leases.wake(device, "keeper", claim.attempt, 600))


@row("leases.leave")
async def _(store: Store, late: Late) -> None:
    """The keeper has been started again."""
    device = (await store.leases.ensure(LeaseKind.GPU, "h:0")).id
    await store.leases.occupy(device, "keeper 1", "http://e", 600, asleep=False)
    await late(store.leases.leave(device, "keeper 1"))
    await store.leases.occupy(device, "keeper 2", "http://e", 600, asleep=False)
