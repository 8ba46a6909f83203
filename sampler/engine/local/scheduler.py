"""The thread that owns the model, the KV cache and every sequence in flight, and its commands.

    loop:  commands (submit, abort, pause, continue, update, …)  ─▶  Batching.step

Public methods may be called from any thread; commands run between steps, in order of arrival. Finished sequences are announced
through `post`, once per step, as a list of their `notify` callables.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import torch

from sampler.engine.api.served import PauseMode
from sampler.engine.local.batching import Batching
from sampler.engine.local.occupation import Occupation
from sampler.engine.local.running import RunningSequence

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class UpdateRefusedError(Exception):
    """A weight update that would leave running sequences on a stale cache, or has no memory to go to; nothing was changed."""


@dataclass(slots=True)
class PendingUpdate:
    apply: Callable[[], None]
    version: str | None  # None: the label stays
    flush_cache: bool
    done: Future[None]


# 32 methods: one thread owns the batches; every method runs on it
class Scheduler:
    def __init__(
        self, batching: Batching, post: Callable[[list[Callable[[], None]]], None], occupation: Occupation
    ) -> None:
        self.occupation = occupation
        self.paused: PauseMode | None = None
        self.failure: BaseException | None = None
        self.beat = time.monotonic()  # time of the loop's last turn; old only while a step takes long
        self._b, self._post = batching, post
        self._measured = (0.0, 0)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._held: deque[RunningSequence] = deque()  # arrived after an update that waits for earlier ones
        self._updates: deque[PendingUpdate] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    # Called from any thread.

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Abort everything and end the thread."""
        self._commands.put(self._stop)
        self._thread.join(timeout_s)

    @property
    def weight_version(self) -> str:
        return self._b.weight_version

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def idle(self) -> bool:
        return not (self._b.can_step or self._held)

    def load(self) -> dict[str, int]:
        """A snapshot for /v1/loads and /server_info."""
        return {
            "running": len(self._b.running) + len(self._b.prefilling),
            "waiting": len(self._b.waiting) + len(self._held),
            "tokens": self._b.kv.busy_tokens(),
        }

    def throughput(self) -> float:
        """Tokens per second since the last call (0 for the first)."""
        now, before = (time.monotonic(), self._b.generated_tokens), self._measured
        self._measured = now
        return (now[1] - before[1]) / (now[0] - before[0]) if before[0] and now[0] > before[0] else 0.0

    def submit(self, generations: list[RunningSequence]) -> None:
        def command() -> None:
            for g in generations:
                (self._held if self._updates else self._b.waiting).append(g)

        self._commands.put(command)

    def abort(self, rid: str | None = None, *, abort_all: bool = False) -> Future[int]:
        """Finish every sequence whose id starts with `rid`, or all, with their partial output; returns their number."""
        return self._call(lambda: self._abort(lambda g: abort_all or (bool(rid) and g.rid.startswith(str(rid)))))

    def abort_these(self, generations: list[RunningSequence]) -> Future[int]:
        """End sequences whose client disconnected."""
        return self._call(lambda: self._abort(lambda g: g in generations))

    def pause(self, mode: PauseMode) -> Future[None]:
        return self._call(lambda: self._pause(mode))

    def resume(self) -> Future[bool]:
        """False, without effect, while memory is released, or the weights have no values since."""
        return self._call(self._resume)

    def flush(self) -> Future[bool]:
        """Forget cached prefixes; False, without effect, while sequences hold KV."""
        return self._call(self._flush)

    def release(self, tags: Sequence[str]) -> Future[bool]:
        """Free memory; False, without effect, while sequences hold KV or could begin to."""
        return self._call(lambda: self._release(tags))

    def allocate(self, tags: Sequence[str]) -> Future[None]:
        return self._call(lambda: self.occupation.resume(tags))

    def set_version(self, version: str) -> Future[None]:
        return self._call(lambda: self._b.enter_version(version))

    def update(self, apply: Callable[[], None], version: str | None, *, flush_cache: bool) -> Future[None]:
        """Run `apply` (which changes the weights) when no sequence would mix versions: at once while paused, otherwise after
        all earlier submissions. Raises UpdateRefusedError through the future."""
        pending = PendingUpdate(apply, version, flush_cache, Future())
        self._commands.put(lambda: self._updates.append(pending))
        return pending.done

    def _call(self, action: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():  # False: the request was cancelled
                future.set_result(action())

        self._commands.put(command)
        return future

    # Everything below runs in the scheduler's thread.

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
        except BaseException as failure:  # SystemExit too: without this thread every request would wait forever
            self.failure = failure
            log.critical("scheduler crashed: the engine exits", exc_info=True)
            signal.raise_signal(signal.SIGTERM)  # uvicorn shuts down; the process ends with status 1
            raise
        finally:
            self._abort(lambda g: True)
            self._publish()

    def _turn(self) -> None:
        self.beat = time.monotonic()
        if not self._can_step() and not self._updates:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()
        if self._updates:
            self._try_updates()
        if self._can_step():
            self._b.step()
        self._publish()

    def _can_step(self) -> bool:
        asleep = self.occupation.released or self.occupation.stale
        return self.paused is None and not asleep and self._b.can_step

    def _publish(self) -> None:
        if self._b.notices:
            notices, self._b.notices = self._b.notices, []
            self._post(notices)

    def _abort(self, chosen: Callable[[RunningSequence], bool]) -> int:
        aborted = [g for g in (*self._b.running, *self._b.prefilling, *self._b.waiting, *self._held) if chosen(g)]
        for g in aborted:
            for line in (self._b.waiting, self._held):
                if g in line:
                    line.remove(g)
            if not g.runs:
                g.enter_version(self._b.weight_version)
            self._b.finish(g, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})
        return len(aborted)

    def _pause(self, mode: PauseMode) -> None:
        self.paused = mode
        if mode == "abort":
            self._abort(lambda g: True)
        if mode == "retract":
            self._b.retract()

    def _resume(self) -> bool:
        if self.occupation.released or self.occupation.stale:
            return False
        self.paused = None
        return True

    @property
    def _holds_cache(self) -> bool:
        return self._b.holding or (bool(self._b.waiting) and self.paused is None)

    def _flush(self) -> bool:
        if self._holds_cache:
            return False
        self._b.kv.flush()
        return True

    def _release(self, tags: Sequence[str]) -> bool:
        if self._holds_cache:
            return False
        self._b.forget()
        self.occupation.release(tags)
        return True

    def _try_updates(self) -> None:
        holding = self._b.holding
        if self.paused is None and (holding or self._b.waiting) and not self.occupation.stale:
            return
        while self._updates:
            update = self._updates.popleft()
            if not update.done.set_running_or_notify_cancel():
                continue
            if self.occupation.released or (holding and update.flush_cache):
                update.done.set_exception(UpdateRefusedError())
                continue
            self._apply(update)
        self._b.waiting.extend(self._held)
        self._held.clear()

    def _apply(self, update: PendingUpdate) -> None:
        update.apply()
        self.occupation.filled()
        self._b.forget()
        if update.version is not None:
            self._b.enter_version(update.version)
        update.done.set_result(None)

    def _stop(self) -> None:
        self._stopping = True
