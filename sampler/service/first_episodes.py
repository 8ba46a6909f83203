"""Before this process has scored an episode, a configuration error of several tasks ends the process.

Otherwise each task would fail in turn, and once the setting is fixed the run would have no tasks left to play. Forks say nothing
about that: their origin may be of other tools or another template, and their failure is their command's to tell.
"""

from sampler.sampler import AsyncSampler
from shared.documents.states import RecordStatus
from shared.errors import ConfigError
from shared.names import FORK_SPLIT

UNSCORED = {RecordStatus.FAILED: "failed", RecordStatus.COMPLETED: "awaiting_feedback"}
MAX_TASKS = 3  # one task's metadata may be wrong


class FirstEpisodes:
    def __init__(self) -> None:
        self.are_over = False  # an episode was scored, or waits for its score
        self._wrong: dict[str, str] = {}  # by task

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
        elif episode.misconfigured is not None and not self.are_over and sampler.task.split != FORK_SPLIT:
            self._wrong[sampler.task.id] = episode.misconfigured
        return UNSCORED.get(episode.status, "given_back")

    def check(self) -> None:
        """Raises ConfigError if several tasks failed with configuration errors and no episode was scored."""
        if len(self._wrong) >= MAX_TASKS:
            task, error = next(iter(self._wrong.items()))
            raise ConfigError(f"{len(self._wrong)} tasks failed before any episode was scored; {task}: {error}")
