"""The requests of one episode that wait for a reply: at most one in each thread, and none after the episode's end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sampler.core.episode.journal import Thread
from shared.errors import ConfigError, OwnCodeFailed

STOP_S = 5.0


class InFlight:
    def __init__(self) -> None:
        self._callers: dict[Thread, asyncio.Task[object] | None] = {}
        self._turns: dict[Thread, int] = {}
        self.elsewhere: set[int] = set()  # turns that other processes ask for
        self._ended = False

    @contextmanager
    def asking(self, thread: Thread) -> Iterator[None]:
        """Raises ConfigError if the thread waits for a reply already, and CancelledError after the episode's end."""
        if self._ended:
            raise asyncio.CancelledError("the episode has ended")
        self.require_free(thread)
        self._callers[thread] = asyncio.current_task()
        try:
            yield
        finally:
            del self._callers[thread]
            self._turns.pop(thread, None)

    def require_free(self, thread: Thread) -> None:
        """Raises ConfigError if the thread waits for a reply."""
        if thread in self._callers:
            raise ConfigError(
                f"{_name(thread)} waits for a reply already: await it first, or give each parallel conversation a thread "
                'of its own, as in create_chat_completions(messages, thread="draft-1")'
            )

    def number(self, thread: Thread, turn: int) -> list[int]:
        """Note the number of the thread's request. Returns those of the other threads' requests that wait for replies."""
        others = sorted(self.elsewhere.union(self._turns.values()))
        self._turns[thread] = turn
        return others

    def end(self) -> None:
        """No request from now on."""
        self._ended = True

    def require_none(self) -> None:
        """Raises OwnCodeFailed if requests wait: an episode with an open request is incomplete."""
        if self._callers:
            waiting = ", ".join(map(_name, self._callers))
            raise OwnCodeFailed(
                f"the sampler returned while {waiting} waits for a reply: await or cancel every request before that"
            )

    async def stop(self) -> None:
        """End the episode and cancel all requests: a gather that failed leaves the others running."""
        self._ended = True
        callers = {task for task in self._callers.values() if task is not None and task is not asyncio.current_task()}
        for task in callers:
            task.cancel()
        if callers:
            await asyncio.wait(callers, timeout=STOP_S)


def _name(thread: Thread) -> str:
    policy, name = thread
    return f"policy {policy}" if name is None else f"thread {name!r} of policy {policy}"
