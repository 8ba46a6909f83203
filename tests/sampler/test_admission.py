"""The admission limit against the formula over all documents, for random events of groups in any order."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from shared.documents import DataClaim
from shared.documents.run import Admission
from shared.documents.states import DataStatus, TaskStatus
from shared.store import Store
from shared.tasks.admission import seq_limit
from tests.shared.builders import claim, import_tasks, let_time_pass, make_data, make_task

OVER = (TaskStatus.SETTLED, TaskStatus.ABANDONED, TaskStatus.SKIPPED)


async def openable(store: Store, admissions: dict[str, Admission], policies: Sequence[str] = ("main",)) -> set[int]:
    limit, _ = await seq_limit(store, policies, admissions)
    return await created_below(store, limit)


async def created_below(store: Store, limit: int) -> set[int]:
    created = await store.database["tasks"].find({"status": TaskStatus.CREATED.value}).to_list()
    return {task["seq"] for task in created if task["seq"] < limit}


async def by_formula(store: Store, admissions: dict[str, Admission], steps: dict[str, int]) -> set[int]:
    """AReaL's, from every document there is: seq < (step + 1 + max_staleness) · groups_per_step, beyond what gave no data."""
    tasks = sorted(await store.database["tasks"].find().to_list(), key=lambda task: task["seq"])
    data = await store.data.find({})
    limits = []
    for policy, admission in admissions.items():
        limit = (steps[policy] + 1 + admission.max_staleness) * admission.groups_per_step
        if admission.num_steps is not None:
            limit = min(limit, admission.num_steps * admission.groups_per_step)
        aside = {d.task for d in data if d.policy == policy and d.status in (DataStatus.STALE, DataStatus.DROPPED)}
        useless = [t for t in tasks if t["_id"] in aside or (t["status"] in OVER and policy not in t["data_of"])]
        for task in sorted(useless, key=lambda task: task["seq"]):
            limit += task["seq"] < limit or task["status"] != TaskStatus.SKIPPED
        limits.append(limit)
    return {t["seq"] for t in tasks if t["status"] == TaskStatus.CREATED and t["seq"] < min(limits)}


class Life:
    """Groups of one policy, moved on by hand."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self.store, self.admissions, self.step, self.trained = store, {"main": admission}, 0, 0
        self._playing: list[Any] = []

    async def open(self) -> None:
        limit, _ = await seq_limit(self.store, ["main"], self.admissions)
        if (held := await claim(self.store, seq_limit=limit)) is not None:
            self._playing.append(held)

    async def finish(self, which: float = 0.0) -> None:
        if self._playing:
            await self.store.tasks.finish_slot(self._playing.pop(int(which * len(self._playing))), 1.0)

    async def settle(self, *, useless: bool = False) -> None:
        task = await self.store.tasks.claim_settlement("w", policy="main", lease_s=60)
        if task is not None:
            if not useless:
                await self.store.data.write_group([make_data(task, 0, group_size=1)])
            data_of = [] if useless else ["main"]
            await self.store.tasks.finish_settlement(task, "over", abandoned=useless, data_of=data_of)

    async def drop(self, status: DataStatus) -> None:
        for group in await self.store.data.ready_groups("main", 1):
            await self.store.data.set_aside(group["records"], status, "too old")

    async def skip(self) -> None:
        """The next task but one."""
        created = await self.store.database["tasks"].find({"status": "created"}).sort("seq").to_list(2)
        if len(created) > 1:
            change = {"$set": {"status": TaskStatus.SKIPPED.value}}
            await self.store.database["tasks"].update_one({"_id": created[1]["_id"]}, change)

    async def train(self) -> None:
        size = self.admissions["main"].groups_per_step
        groups = await self.store.data.ready_groups("main", size)
        if self.trained == self.step and len(groups) == size:
            self.trained += 1
            borrowed = DataClaim(trainer_generation=1, step=self.trained)
            await self.store.data.claim([rid for group in groups for rid in group["records"]], borrowed)
            await self.store.data.commit_step("main", borrowed, max_trained_count=1)

    async def publish(self) -> None:
        if self.trained > self.step:
            self.step = self.trained
            await self.store.versions.announce("main", self.step, f"/{self.step}", {})

    async def rewind(self) -> None:
        """Back by a step: another start of the trainer."""
        self.step = self.trained = max(0, self.step - 1)
        await self.store.data.rewind("main", self.step, max_trained_count=1)
        await self.store.versions.withdraw_after("main", self.step, trainer_generation=9)


@pytest.mark.parametrize("seed", range(2))
async def test_counting_groups_between_opened_and_trained_equals_the_formula_over_all_documents(
    store: Store, seed: int
) -> None:
    rng = random.Random(seed)
    life = Life(store, Admission(groups_per_step=2, max_staleness=rng.randrange(3), num_steps=8))
    await import_tasks(store, 40, num_generations=1)
    moves: list[tuple[int, Callable[[], Awaitable[None]]]] = [
        (8, life.open),
        (6, lambda: life.finish(rng.random())),
        (5, life.settle),
        (1, lambda: life.settle(useless=True)),
        (1, lambda: life.drop(rng.choice([DataStatus.STALE, DataStatus.DROPPED]))),
        (1, life.skip),
        (4, life.train),
        (3, life.publish),
    ]
    weights = [weight for weight, _ in moves]
    for _ in range(100):
        _, move = rng.choices(moves, weights)[0]
        await move()
        expected = await by_formula(store, life.admissions, {"main": life.step})
        assert await openable(store, life.admissions) == expected
    assert life.step >= 1
    await life.rewind()
    assert await openable(store, life.admissions) == set(), "what was taken back is trained first"


async def test_a_group_that_changes_state_during_the_count_is_never_missed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be counted twice; the next count is right again."""
    life = Life(store, Admission(groups_per_step=2, max_staleness=1))
    await import_tasks(store, 40, num_generations=1)
    for _ in range(3):
        await life.open()
    await life.finish()
    await life.settle()

    async def everything_moves() -> None:
        for move in (life.train, life.settle, life.finish, life.open):
            await move()

    for look in ("_end", "_waiting", "_untrained", "_count_groups"):
        expected = await openable(store, life.admissions)
        original = getattr(store.admission, look)

        async def looks_and_all_moves(*args: Any, original: Any = original) -> Any:
            found = await original(*args)
            monkeypatch.undo()
            await everything_moves()
            return found

        monkeypatch.setattr(store.admission, look, looks_and_all_moves)
        limit, _ = await seq_limit(store, ["main"], life.admissions)
        assert await created_below(store, limit) <= expected, look
        await store.tasks.insert_new([make_task(99 + len(look), num_generations=1)])  # imported meanwhile


async def test_tasks_imported_during_the_count_are_not_opened_beyond_the_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = store.admission._waiting

    async def looks_before_the_import(*args: Any) -> Any:
        found = await original(*args)
        await import_tasks(store, 40)
        return found

    monkeypatch.setattr(store.admission, "_waiting", looks_before_the_import)
    assert len(await openable(store, {"main": Admission(groups_per_step=4, max_staleness=2)})) == 12


async def test_a_task_is_opened_only_while_every_policy_that_has_steps_to_take_wants_it(store: Store) -> None:
    eager = Admission(groups_per_step=4, max_staleness=2, num_steps=3)
    slow = Admission(groups_per_step=2, max_staleness=1, num_steps=9)
    both, policies = {"main": eager, "judge": slow}, ["main", "judge"]
    limit, why = await seq_limit(store, policies, {"main": eager})
    assert limit == 0
    assert str(why).startswith("waits for the trainer of policy judge: it has not started; until it starts")
    assert await seq_limit(store, ["main"], both) == (12, "sampling")
    assert (await seq_limit(store, policies, both))[0] == 4  # the judge's (0 + 1 + 1) · 2
    tasks = [make_task(seq).model_copy(update={"status": TaskStatus.SETTLED, "data_of": ["main"]}) for seq in range(5)]
    await store.tasks.insert_new(tasks)
    for task in tasks:
        await store.data.write_group([make_data(task, 0, group_size=1)])
    assert (await seq_limit(store, policies, both))[0] == 5 + 4  # five groups gave the judge nothing
    assert (await seq_limit(store, ["main"], both))[0] == 12
    for number in range(10):
        await store.versions.announce("judge", number, f"/{number}", {})
    assert (await seq_limit(store, policies, both))[0] == 12  # the judge has taken its steps, main has not
    for number in range(4):
        await store.versions.announce("main", number, f"/main/{number}", {})
    assert (await seq_limit(store, policies, both))[0] == 5, "nothing more is opened"


async def test_large_groups_are_counted_as_groups(store: Store) -> None:
    """Forty records each: more than are read at first."""
    for task in await import_tasks(store, 9):
        await store.data.write_group([make_data(task, k, group_size=40) for k in range(40)])
    await store.database["tasks"].update_many({}, {"$set": {"status": TaskStatus.SETTLED.value, "data_of": ["main"]}})
    for capacity, expected in ((9, 9), (10, 10), (8, 9)):
        assert (await seq_limit(store, ["main"], {"main": Admission(groups_per_step=capacity, max_staleness=0)}))[
            0
        ] == expected


async def test_groups_that_fail_repeatedly_hold_no_untouched_task_back_but_an_outage_does_not_open_all(
    store: Store,
) -> None:
    last_step = {"main": Admission(groups_per_step=4, max_staleness=0, num_steps=1)}
    await import_tasks(store, 30, num_generations=1)

    async def fails(times: int) -> None:
        """Every task that may be opened fails so often."""
        for _ in range(times):
            limit, _ = await seq_limit(store, ["main"], last_step)
            while (held := await claim(store, seq_limit=limit)) is not None:
                await store.tasks.retry_slot(held, "AgentCrashed: 1", delay_s=1e6, max_failures=99)
            await let_time_pass(store)

    assert await openable(store, last_step) == {0, 1, 2, 3}
    await fails(1)
    assert await openable(store, last_step) == set(), "a single failure is no reason"
    await fails(1)
    assert await openable(store, last_step) == {4, 5, 6, 7}
    limit, _ = await seq_limit(store, ["main"], last_step)
    assert limit == 8, "and those that failed are tried again"
    await fails(8)
    assert await openable(store, last_step) == set(), "one step's groups give way, not the next ones too"
    assert await store.tasks.count_by_status() == {"train": {"running": 8, "created": 22}}
