"""Before this process has scored an episode, a configuration error of several tasks ends the process.

Otherwise each task would fail in turn, and once the setting is fixed the run would have no tasks left to play.
"""

from shared.errors import ConfigError

MAX_TASKS = 3  # one task's metadata may be wrong


class FirstEpisodes:
    def __init__(self) -> None:
        self.are_over = False  # an episode was scored
        self._wrong: dict[str, str] = {}  # by task

    def scored(self) -> None:
        self.are_over = True
        self._wrong.clear()

    def misconfigured(self, task: str, error: str) -> None:
        if not self.are_over:
            self._wrong[task] = error

    def check(self) -> None:
        """Raises ConfigError if several tasks failed with configuration errors and no episode was scored."""
        if len(self._wrong) >= MAX_TASKS:
            task, error = next(iter(self._wrong.items()))
            raise ConfigError(f"{len(self._wrong)} tasks failed before any episode was scored; {task}: {error}")
