"""The loop that settles completed groups, of this and other samplers. Group scorers run in tasks of their own.

    an episode of this process completes a group ─▶ claimed with others like it, by one command ─▶ settled
    a signal, a poll                             ─▶ a query for groups that others completed and left ─▶ settled

A group belongs to the process that completed it for `LEFT_S`, so that processes do not query for each other's groups.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
LEFT_S = 5.0  # groups that others completed more recently are left to them
GATHER_S = 0.25  # between two rounds of settlements: groups that are completed meanwhile share their commands


class Settling:
    """`settled`: how many this process has. `on_scores`: gets the scores that became known with their group; `note`: every
    group."""

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
        self._complete: list[str] = []  # ids of groups that this process may have completed
        self._some_complete, self._others_due = asyncio.Event(), asyncio.Event()
        self._claimed: set[str] = set()  # ids of groups that are being settled or scored
        self._scoring = GroupScoring(store, worker, config, judge, self._settle, self._bugs)
        self._group: asyncio.TaskGroup | None = None

    def complete(self, task_id: str) -> None:
        """An episode of this process has ended, and may have completed the group."""
        self._complete.append(task_id)
        self._some_complete.set()

    async def run(self) -> None:
        """Until it is cancelled; groups that are being scored are then free for others at once."""
        timer = PollTimer(self._store.signals, [Signal.TASKS], SETTLE_POLL_S)
        async with asyncio.TaskGroup() as self._group:
            while True:
                await first_of(self._some_complete.wait(), self._others_due.wait(), self._poll(timer))
                began, others_s = time.monotonic(), LEFT_S if self._others_due.is_set() else None
                self._others_due.clear()
                self._some_complete.clear()
                await self.settle_all(self._group, others_s=others_s)
                await asyncio.sleep(began + GATHER_S - time.monotonic())

    async def _poll(self, timer: PollTimer) -> None:
        await timer.pause()
        self._others_due.set()

    async def settle_all(self, group: asyncio.TaskGroup | None = None, *, others_s: float | None = 0.0) -> None:
        """Settle what is complete, several groups at a time. `group`: where groups are scored; None: those are left to others.
        `others_s`: also those of other processes that have been complete for so long; None: none of theirs."""
        places = asyncio.Semaphore(MOST_SETTLEMENTS)
        async with (
            self._one_at_a_time,
            asyncio.TaskGroup() as settlements,
        ):  # the last call waits for what the loop has begun
            if others_s is not None:
                self._complete += await end_waits(self._store, self._policy)
            complete = [*dict.fromkeys(self._complete)]  # what is completed from now on waits for the next round
            self._complete.clear()
            while complete or others_s is not None:
                taken, complete = complete[:MOST_SETTLEMENTS], complete[MOST_SETTLEMENTS:]
                tasks = await self._claim(taken, others_s or 0.0, None if group is None else self._scoring.left)
                if not taken and not tasks:
                    others_s = None
                for task in tasks:
                    self._claimed.add(task.id)
                    if group is not None and self._scoring.awaits(task):
                        self._scoring.start(group, task, partial(self._scored, task))
                    else:
                        await places.acquire()
                        settling = settlements.create_task(self._settle(task), name=f"settle {task.id}")
                        settling.add_done_callback(lambda _: places.release())

    async def _claim(self, complete: Sequence[str], others_s: float, excluded: Sequence[str] | None) -> Sequence[Task]:
        """Of the groups that this process has completed, those that no other has claimed; without any, one that another left."""
        common: dict[str, Any] = {"policy": self._policy, "lease_s": SETTLE_LEASE_S, "left": excluded}
        common["rules"] = self._rules.applicable
        if complete:
            ids = [name for name in complete if name not in self._claimed]
            return await self._store.settlements.claim(ids, self._worker, **common)
        task = await self._store.tasks.claim_settlement(self._worker, completed_s=others_s, **common)
        return [] if task is None else [task]

    def _scored(self, task: Task) -> None:
        self._claimed.discard(task.id)
        self._others_due.set()

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
        finally:
            self._claimed.discard(task.id)

    async def _settled(self, task: Task) -> None:
        await settle(self._store, task)
        self.settled += 1
        self._note(task)
        if task.group_scores:
            self._on_scores([slot.score for slot in task.slots if slot.score is not None])
