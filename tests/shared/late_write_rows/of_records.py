"""Late writes to records, sessions of agents, and training data."""

from shared.documents import DataClaim
from shared.documents.agent_sessions import AgentSession, ClientRequest, SessionEnd
from shared.documents.states import DataStatus, DispatchStatus, RecordStatus
from shared.store import Store
from tests.shared.builders import make_data, make_task
from tests.shared.episodes import make_dispatches, settle, train, whole_run
from tests.shared.late_write_rows.rows import RECORD, Late, completed, held, row

FIRST, SECOND = DataClaim(trainer_generation=1, step=1), DataClaim(trainer_generation=2, step=1)


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


@row("sessions.begin", "sessions.open_turn", "sessions.save_reply", "sessions.count_replays", "sessions.end")
async def _(store: Store, late: Late) -> None:
    """An attempt of an agent elsewhere: a turn, its reply, the end, and a second end, which changes nothing."""
    got = await held(store)
    client = ClientRequest(identity="i", cause="first", requested_by="a")
    opened = make_dispatches(got.record_id)[0].model_copy(update={"client": client})
    asked = opened.model_copy(update={"response": None, "status": DispatchStatus.RUNNING, "weight_versions": []})
    await late(store.sessions.begin(got, "w", AgentSession(key_hash="k")))
    await late(store.sessions.open_turn(asked))
    await late(store.sessions.save_reply(opened))
    for count in (1, 2):
        await late(store.sessions.count_replays(got.record_id, "a", count))
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
