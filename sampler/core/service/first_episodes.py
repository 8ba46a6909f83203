"""Watches the failures of this process until it has scored an episode: then its settings are right, and failures are single.

wrong settings of several tasks,  end the process: each task would fail in turn, and once the setting is fixed the run
a user's class with a mistake     would have no tasks left to play
any other failures                are told, in the log and as an alarm: the run may wait for ever

Forks say nothing about that: their origin may be of other tools or another template, and their failure is
their command's to tell.
"""

import logging

from sampler.core.episode.sampler import AsyncSampler
from shared.documents import Task
from shared.documents.states import RecordStatus
from shared.errors import ConfigError
from shared.names import FORK_SPLIT

log = logging.getLogger(__name__)

UNSCORED = {RecordStatus.FAILED: "failed", RecordStatus.COMPLETED: "awaiting_feedback"}
MAX_TASKS = 3  # one task's metadata may be wrong
MANY = 8  # failures in a row that are no accident any more


class FirstEpisodes:
    def __init__(self) -> None:
        self.are_over = False  # an episode was scored, or waits for its score
        self._wrong: dict[str, str] = {}  # by task
        self._failures = 0
        self._last = ""

    def scored(self, split: str) -> None:
        """An episode of a task of the split was scored, or waits for its score."""
        if split != FORK_SPLIT:
            self.are_over = True
            self._wrong.clear()

    def unscored(self, sampler: AsyncSampler) -> str:
        """An episode has ended without a score: it waits for feedback, or something failed. Returns what it counts as."""
        episode = sampler.episode
        if episode.status is RecordStatus.COMPLETED:
            self.scored(sampler.task.split)
        elif episode.failure is not None:
            self.failed(sampler.task, episode.failure, wrong=episode.misconfigured)
        return UNSCORED.get(episode.status, "given_back")

    def failed(self, task: Task, error: str, *, wrong: bool) -> None:
        """`wrong`: by a setting, by the task itself or by a mistake in a user's class."""
        if self.are_over or task.split == FORK_SPLIT:
            return
        if wrong:
            self._wrong[task.id] = error
        self._failures, self._last = self._failures + 1, error
        if self._failures == MANY:
            log.error("%s", self._message())

    def _message(self) -> str:
        return f"{self._failures} episodes failed, and none was scored; the last: {self._last}"

    def alarms(self) -> list[str]:
        return [self._message()] if self._failures >= MANY and not self.are_over else []

    def check(self) -> None:
        """Raises ConfigError if several tasks failed by a setting or a user's code, and no episode was scored."""
        if len(self._wrong) >= MAX_TASKS:
            task, error = next(iter(self._wrong.items()))
            raise ConfigError(f"{len(self._wrong)} tasks failed before any episode was scored; {task}: {error}")
