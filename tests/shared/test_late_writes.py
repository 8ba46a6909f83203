"""Every write of the store, repeated at once and after later events: nothing changes.

A row (tests/shared/late_write_rows/) is a verb and what happens after it. The commands that the verb sent are sent again at
once, as a driver does whose answer was lost, and again at the end, as where a network held them back. A verb that is new must get
a row, or a reason.
"""

import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.late_commands import Recorder, everything, send
from tests.shared.late_write_rows import ROWS

READS = {
    *(
        "tasks.next_seq",
        "tasks.existing_payloads",
        "tasks.is_played_by",
        "tasks.ended_of",
        "admission.seq_limit",
        "tasks.get",
        "tasks.first_unended",
        "malformed.all",
        "unforeseen.tasks_set_aside",
    ),
    "sessions.find",
    *("notes.of", "notes.newest", "notes.records_with", "notes.views"),
    *(
        "resettling.played",
        "resettling.group",
        "resettling.scores",
        "resettling.count_unsettled",
        "resettling.outcomes",
    ),
    *("feedback.waiting", "outlook.count_failing", "outlook.of_run"),
    *("tasks.count_by_status", "tasks.count_slots", "tasks.count_failures", "evaluation.awaited_version"),
    *("evaluation.open_versions", "evaluation.count_round", "evaluation.epochs", "evaluation.round_tasks"),
    *("evaluation.round_records", "records.get", "records.get_many", "records.dispatches_of", "records.tokens_of"),
    *("records.recent", "records.count_by_status", "data.ready_groups", "data.load", "data.count_above", "data.find"),
    *("data.count_by_status", "data.count_ready_groups", "steps.surviving", "runs.read"),
    *("events.since", "events.last"),
    *("rules.all", "rules.policies", "rules.of_task"),
    *(
        "steps.metrics_of",
        "steps.newest_metrics",
        "settings.last",
        "settings.of_trainer",
        "settings.of_worker",
        "tool_schemas.get_many",
        "images.read",
        "images.described",
        "images.sizes",
        "routed_experts.read",
    ),
    *(
        "runs.get",
        "runs.is_paused",
        "runs.is_current_trainer",
        "versions.get",
        "versions.find",
        "versions.newest",
        "versions.all",
        "versions.some",
        "versions.unpruned",
    ),
    *(
        "versions.check_first",
        "services.live",
        "services.is_live",
        "services.needs_full_weights",
        "services.all",
        "environments.live",
        "environments.all",
        "workers.all",
        "workers.all_and_live",
        "workers.live",
        "leases.get",
        "leases.all",
        "leases.is_held",
        "leases.claimed",
        "sessions.over",
        "sessions.has_turn",
        "sessions.held_by",
    ),
}
REASONS = {
    "tasks.claim_slots": "leases other slots, which are free again when that lease ends",
    "tasks.claim_settlement": "leases another group, which is free again when that lease ends",
    "settlements.claim": "leases groups that no settler has, which are free again when that lease ends",
    "tasks.renew_leases": "a lease that is still held ends later, and the gateway that serves it renews it again",
    "group_scores.renew": "the lease of a group that is being scored ends later",
    "malformed.note": "the same problem again, seen later",
    "runs.set_state": "a person's word: the last one counts",
    "notes.save_view": "a person's word: the last one of a name counts",
    "notes.remove_view": "a person's word: a view of this name that was saved meanwhile is saved again by hand",
    "runs.note_step_cost": "what the launcher measured, for people: the last one counts",
    "runs.note_settings": "what a service runs with, for people: the last one counts",
    "versions.set_source": "where the trainer serves files: the address of its next version replaces it",
    "services.heartbeat": "the next one, some seconds later, is right again",
    "services.set_status": "the next heartbeat is right again",
    "services.remove": "the next heartbeat is right again",
    "environments.heartbeat": "the next one, some seconds later, is right again",
    "environments.remove": "the next heartbeat is right again",
    "workers.heartbeat": "the next one is right again",
    "workers.leave": "the next heartbeat is right again",
    "sessions.post_score": "an agent's word: the last one counts",
    "sessions.score_turn": "an agent's word: the last one counts",
    "sessions.meet_limit": "the limit met last counts, until a turn after it is answered",
    "leases.renew": "a claim that lasts ends later",
    "leases.stay": "an occupant that is registered counts as dead later",
    "indexes": "they are there or not",
}


@pytest.fixture
async def recorded(mongod: Mongod) -> AsyncIterator[tuple[Store, Recorder]]:
    recorder = Recorder()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[recorder])
    run = f"test-{uuid.uuid4().hex[:12]}"
    async with Store.open(mongod.connection_string, run):
        store = Store(client, run)
        yield store, recorder
    await client.drop_database(run)
    await client.close()


@pytest.mark.parametrize("verb", ROWS)
async def test_a_write_that_is_repeated_or_comes_late_changes_nothing(
    recorded: tuple[Store, Recorder], verb: str
) -> None:
    store, recorder = recorded
    sent: list[dict[str, Any]] = []

    async def late(work: Awaitable[Any]) -> Any:
        recorder.take()
        result = await work
        commands = recorder.take()
        sent.extend(commands)
        before = await everything(store.database)
        await send(store.database, commands)
        assert await everything(store.database) == before, "repeated"
        return result

    await ROWS[verb](store, late)
    assert sent, "it writes"
    before = await everything(store.database)
    await send(store.database, sent)
    assert await everything(store.database) == before, "late"


def test_every_verb_of_the_store_is_a_read_or_has_a_row_or_a_reason(store: Store) -> None:
    verbs = {
        f"{name}.{verb}"
        for name, owner in vars(store).items()
        if type(owner).__name__.endswith("Verbs") and name != "questions"
        for verb, method in inspect.getmembers(owner, inspect.iscoroutinefunction)
        if not verb.startswith("_") and verb != "ensure_indexes"
    }
    told = {verb.strip() for verb in ROWS} | READS | (REASONS.keys() - {"indexes"})
    assert verbs - told == set()
    assert told - verbs == set()
