"""Until an episode of this process is scored, a mistake is rather one of the settings than of a task: the process ends by it.

Else each task would fail by it in turn, and a run whose tasks have all failed has nothing left to play once it is mended.
"""

from shared.errors import ConfigError

MAX_TASKS = 3  # one task's metadata may be wrong by itself


class FirstEpisodes:
    def __init__(self) -> None:
        self.are_over = False  # one was scored
        self._wrong: dict[str, str] = {}  # by task

    def scored(self) -> None:
        self.are_over = True
        self._wrong.clear()

    def misconfigured(self, task: str, error: str) -> None:
        if not self.are_over:
            self._wrong[task] = error

    def check(self) -> None:
        """Raises ConfigError where several tasks have failed by settings, and no episode was scored."""
        if len(self._wrong) >= MAX_TASKS:
            task, error = next(iter(self._wrong.items()))
            raise ConfigError(f"{len(self._wrong)} tasks failed, and no episode was scored before; {task}: {error}")
