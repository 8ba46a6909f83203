"""Verbs that name an index to the server: it is used where it is, and its absence changes no answer."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shared.store import Store
from shared.store.admission import OffPolicyBudget
from shared.store.indexes import with_index
from shared.store.views.dashboard import curves_depend_on
from tests.shared.builders import claim, import_tasks
from tests.shared.episodes import play, play_and_wait, settle, whole_run

ROOT = Path(__file__).parents[2]
PROGRAMS = ("shared", "sampler", "trainer", "scripts/tandem")
ASKS: dict[str, tuple[set[str], Callable[[Store], Awaitable[Any]]]] = {
    "seq_limit": (
        {"by status", "order", "untrained groups", "trained groups"},
        lambda store: store.admission.seq_limit("main", {"main": OffPolicyBudget(step=0, groups=5)}),
    ),
    "waiting": ({"feedback"}, lambda store: store.feedback.waiting(10)),
    "count_failing": ({"by status"}, lambda store: store.outlook.count_failing("main", 10)),
    "outlook": ({"by status"}, lambda store: store.outlook.of_run()),
    "count_failures": ({"failures"}, lambda store: store.tasks.count_failures()),
    "seated_records": ({"recent"}, lambda store: store.questions.seated_records("train", 10)),
    "curves_depend_on": ({"by status"}, lambda store: curves_depend_on(store, "main")),
}


async def busy(store: Store) -> None:
    """A trained group, one to be trained, an episode that waits for feedback, a failure, tasks that nothing has begun."""
    await import_tasks(store, 6)
    for _ in range(4):
        await play(store, await claim(store), 1.0)
    await settle(store)
    await play_and_wait(store, await claim(store))
    await store.tasks.retry_slot(await claim(store), "no engine", delay_s=0.0, max_failures=8)
    await store.database["records"].update_many({}, {"$set": {"actors": ["a"]}})


@pytest.mark.parametrize("verb", ASKS)
async def test_a_missing_index_changes_no_answer(store: Store, verb: str) -> None:
    names, ask = ASKS[verb]
    await busy(store)
    await store.ensure_indexes()
    await store.database.command("profile", 2)
    found = await ask(store)
    await store.database.command("profile", 0)
    asked = await store.database["system.profile"].find({"command.hint": {"$exists": True}}).to_list()
    assert {one["command"]["hint"] for one in asked} == names
    for collection in ("tasks", "records", "record_data"):
        await store.database[collection].drop_indexes()
    assert await ask(store) == found


async def test_another_error_is_no_missing_index(store: Store) -> None:
    await whole_run(store)
    wrong = {"$nonsense": 1}
    with pytest.raises(OperationFailure, match="nonsense"):
        await with_index("order", lambda by: store.database["tasks"].find_one(wrong, **by))


def test_every_hint_is_given_by_with_index() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for program in PROGRAMS
        for path in (ROOT / program).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bhint=|\.hint\(|\"hint\"", line)
    ]
    assert found == ['shared/store/indexes.py: return await ask({"hint": name})']
