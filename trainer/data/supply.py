"""Supply: why a step's data is not there yet, and whether it ever will be.

    a step needs groups ─▶ the tasks may still give some      wait; the heartbeat says what they are waiting for
                        ─▶ none can, for `wait_for_tasks_s`   the last step takes what is there (`drop_last`: nothing); the end

While held-out tasks are played before the first train task is seen, train tasks may follow: the launcher queues them then.
"""

import math
import time

from shared.processes.waits import Wait
from shared.store.outlook import Outlook
from shared.store.poll_timer import LONGEST_S
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig

POLL_EVERY_S = 1.0


class TaskSupply:
    """Of one trainer, rank 0. `outlook`: as last seen."""

    def __init__(self, bridge: StoreBridge, config: TrainerConfig) -> None:
        self._bridge = bridge
        self._config = config
        self._polled_at = -math.inf
        self._used_up_since: float | None = None
        self._saw_work = False
        self.outlook = Outlook()
        self.batches_skipped = 0  # whose groups all had equal rewards

    def is_used_up(self) -> bool:
        """Whether nothing more can come. Ask it before the groups: then they hold all that came. It looks once a second."""
        if self._config.data.offline is not None:
            return True
        now = time.monotonic()
        if now - self._polled_at < POLL_EVERY_S:
            return False
        self._polled_at = now
        self.outlook = seen = self._bridge(self._bridge.store.outlook.of_run())
        self._saw_work |= seen.may_give_data
        if not seen.any_task or seen.may_give_data or (seen.in_evaluation and not self._saw_work):
            self._used_up_since = None
            return False
        self._used_up_since = self._used_up_since or now
        limit_s = self._config.data.wait_for_tasks_s
        return limit_s is not None and now - self._used_up_since >= limit_s

    @property
    def longest_pause_s(self) -> float:
        """Between two queries: no signal announces the end of `wait_for_tasks_s`."""
        limit_s = self._config.data.wait_for_tasks_s
        if self._used_up_since is None or limit_s is None:
            return LONGEST_S
        return max(POLL_EVERY_S, self._used_up_since + limit_s - time.monotonic())

    def wait(self, step: int, ready: int) -> Wait:
        """What the trainer waits for before `step`."""
        return Wait(self._groups(step), f"{ready} ready, {self.outlook}{self._skipped()}", self._end())

    def paused(self, step: int) -> Wait:
        return Wait(f"step {step}", "the run is paused", f"`tandem resume {self._config.run}`")

    def why_used_up(self, ready: int) -> str:
        needed = f"{ready} groups left of the {self._config.data.groups_per_step} that a step takes"
        offline = self._config.data.offline
        if offline is not None:
            return f"run {offline.data_run} is used up: {needed}"
        more = "`tandem tasks import` adds some, and the same command goes on"
        return f"the tasks are used up, all are played: {needed}{self._skipped()}; {more}"

    def _skipped(self) -> str:
        n = self.batches_skipped
        return (
            f"; {n} step{'s' if n > 1 else ''} skipped, of groups of equal rewards alone (nothing to learn)"
            if n
            else ""
        )

    def _groups(self, step: int) -> str:
        return f"{self._config.data.groups_per_step} groups for step {step}"

    def _end(self) -> str:
        seen, limit_s = self.outlook, self._config.data.wait_for_tasks_s
        if not seen.any_task:
            return "`tandem tasks import`, or the launcher, adds tasks"
        if not seen.may_give_data:
            limit = "" if limit_s is None else f", or for {limit_s:g} s (wait_for_tasks_s)"
            return f"more tasks are imported{limit}"
        if seen.playing or seen.unopened or seen.unsettled:
            return "samplers have played them"
        if seen.awaiting_feedback:
            return "feedback comes, or its deadline"
        return "a retry succeeds, or they fail for good (the sampler's max_failures)"
