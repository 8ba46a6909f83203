"""The loop that settles completed groups, of this and other samplers. Group scorers run in tasks of their own."""

import asyncio
from collections.abc import Callable, Sequence

from sampler.core.api_models import Judge
from sampler.core.service.loops import first_of
from sampler.core.settings.core_config import CoreConfig
from sampler.core.settlement.current_rules import CurrentRules
from sampler.core.settlement.failed import fail_settlement
from sampler.core.settlement.group_scoring import GroupScoring
from sampler.core.settlement.settle import SETTLE_LEASE_S, end_waits, settle
from shared.documents import Task
from shared.store import Store
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from shared.unforeseen import Bugs, bug_of, is_of_the_process

MOST_SETTLEMENTS = 16  # of one process at once: each waits for about eight commands, which they share
SETTLE_POLL_S = 2.0  # shortest interval of queries for groups that other processes completed or left


class Settling:
    """`wanted`: set it when a group may be complete. `settled`: how many this process has. `tell`: is told the scores that
    became known with their group; `note`: every group."""

    # 8 parameters: what the loop needs is opened by the service; two are for tests and displays
    def __init__(
        self,
        store: Store,
        worker: str,
        config: CoreConfig,
        rules: CurrentRules,
        judge: Judge | None,
        bugs: Bugs | None = None,
        on_scores: Callable[[list[float]], None] = lambda scores: None,
        note: Callable[[Task], None] = lambda task: None,
    ) -> None:
        self.wanted = asyncio.Event()
        self.settled = 0
        self._store, self._worker, self._policy, self._rules, self._on_scores = (
            store,
            worker,
            config.policy,
            rules,
            on_scores,
        )
        self._note, self._bugs, self._config = note, bugs or Bugs(), config
        self._one_at_a_time = asyncio.Lock()
        self._scoring = GroupScoring(store, worker, config, judge, self._settle, self._bugs)
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until it is cancelled; groups that are being scored are then free for others at once."""
        timer = PollTimer(self._store.signals, [Signal.TASKS], SETTLE_POLL_S)
        async with asyncio.TaskGroup() as self._group:
            while True:
                await first_of(self.wanted.wait(), timer.pause())
                self.wanted.clear()
                await self.settle_all(self._group)

    async def settle_all(self, group: asyncio.TaskGroup | None = None) -> None:
        """Settle what is complete, several groups at a time. `group`: where groups are scored; None: those are left to others."""
        places = asyncio.Semaphore(MOST_SETTLEMENTS)
        async with (
            self._one_at_a_time,
            asyncio.TaskGroup() as settlements,
        ):  # the last call waits for what the loop has begun
            await end_waits(self._store, self._policy)
            while (task := await self._next(None if group is None else self._scoring.left)) is not None:
                if group is not None and self._scoring.awaits(task):
                    self._scoring.start(group, task, self.wanted.set)
                else:
                    await places.acquire()
                    settling = settlements.create_task(self._settle(task), name=f"settle {task.id}")
                    settling.add_done_callback(lambda _: places.release())

    async def _next(self, excluded: Sequence[str] | None) -> Task | None:
        return await self._store.tasks.claim_settlement(
            self._worker, policy=self._policy, lease_s=SETTLE_LEASE_S, left=excluded, rules=self._rules.applicable
        )

    def alarms(self) -> list[str]:
        return self._scoring.alarms()

    async def _settle(self, task: Task) -> None:
        """A group whose settlement meets a bug is settled again later, and abandoned after `max_failures` of them."""
        try:
            await self._settled(task)
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):
                raise
            bug = bug_of(exc)
            self._bugs.met("settlement", task.id, bug)
            await fail_settlement(self._store, self._config, task, bug)

    async def _settled(self, task: Task) -> None:
        await settle(self._store, task)
        self.settled += 1
        self._note(task)
        if task.group_scores:
            self._on_scores([slot.score for slot in task.slots if slot.score is not None])
