"""Prefetching: while a step is computed, a thread reads, flattens, merges and packs what the next step will probably take.

It only looks. Nothing is borrowed, marked or set aside before `next_batch` is called for the step itself, which chooses anew:
so a killed trainer loses nothing, a step takes exactly the groups that it would take without prefetching, at their true
staleness, and a group that is read and not used costs time alone. It calls no collective: each rank looks by itself, and reads
its own share.

    step 4 computes      look ─▶ t7, t9 ready: read ─▶ look ─▶ t11 too: read ─▶ all are there: pack ─▶ look …
    next_batch(5)        choose and borrow ─▶ t7, t9, t11 are in the buffer ─▶ rows
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from trainer.data.groups import Candidates, Group, GroupSelector, shares_of
from trainer.data.reading import PrefetchBuffer, Reader, tasks_of
from trainer.process.peers import Peers
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig

POLL_S = 0.25  # shortest interval of queries
READ_AT_ONCE = 4  # groups: `finish` waits for those being read
FINISH_TIMEOUT_S = 300.0


class Prefetch:
    """One thread, between `start` and `finish`. `own`: this rank's place among those that share the data."""

    def __init__(
        self, bridge: StoreBridge, selector: GroupSelector, reader: Reader, config: TrainerConfig, own: Peers
    ) -> None:
        self._bridge = bridge
        self._selector = selector
        self._reader = reader
        self._config = config
        self._own = own
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._stop, self._wake = threading.Event(), threading.Event()
        self._looking: Future[PrefetchBuffer] | None = None

    def start(self, step: int, buffer: PrefetchBuffer) -> None:
        """Fill `buffer` for `step`; it belongs to the thread until `finish` gives it back. What it had of other groups goes."""
        assert self._looking is None, "one step at a time"
        self._stop.clear()
        self._wake.clear()
        self._looking = self._thread.submit(self.fill, buffer, step)

    def finish(self) -> PrefetchBuffer:
        """The buffer, once what is being read is there. Raises what the thread raised."""
        if self._looking is None:
            return PrefetchBuffer()
        self.stop()
        looking, self._looking = self._looking, None
        return looking.result(FINISH_TIMEOUT_S)

    def stop(self) -> None:
        """Look no more: what is about to be borrowed would seem to be gone."""
        self._stop.set()
        self._wake.set()

    def close(self) -> None:
        self.stop()
        self._thread.shutdown(wait=True)

    def fill(self, buffer: PrefetchBuffer, step: int) -> PrefetchBuffer:
        """The thread's work, until `finish` is called."""
        buffer.step, buffer.packed, buffer.unusable = step, {}, {}
        ready = {group.task for group in self._selector.candidates(step).fresh}
        buffer.groups = {task: group for task, group in buffer.groups.items() if task in ready}
        timer = PollTimer(self._bridge.store.signals, [Signal.DATA], POLL_S)
        while not self._stop.is_set():
            candidates = self._selector.candidates(step)
            if self._stop.is_set():
                break
            shares = self._probable_shares(candidates)
            unread = [g for share in shares for g in share if g.task not in buffer.groups]
            missing = [g for g in unread if g.task not in buffer.unusable]
            if missing:
                loaded, unusable = self._reader.read(missing[:READ_AT_ONCE])
                buffer.groups |= loaded
                buffer.unusable |= unusable
            elif unread:
                self._pause(timer)  # for `next_batch`, which sets aside what cannot be trained
            elif not self._pack_one(buffer, shares, candidates):
                self._pause(timer)
        return buffer

    def _pause(self, timer: PollTimer) -> None:
        """Wait for the next query, or for `stop`."""
        pausing = self._bridge.background(timer.pause())
        pausing.add_done_callback(lambda _: self._wake.set())
        self._wake.wait()
        self._wake.clear()
        pausing.cancel()

    def _probable_shares(self, candidates: Candidates) -> list[list[Group]]:
        probable = candidates.fresh[: self._config.data.groups_per_step]
        return shares_of(probable, self._config.data.updates_per_step, self._own.rank, self._own.size)

    def _pack_one(self, buffer: PrefetchBuffer, shares: list[list[Group]], candidates: Candidates) -> bool:
        """Pack the share of one update, if the step could be taken now; False when there is nothing to pack."""
        if len(candidates.fresh) < self._config.data.groups_per_step or not self._reader.advantages_are_final:
            return False
        probable = {tasks_of(share) for share in shares}
        buffer.packed = {tasks: packed for tasks, packed in buffer.packed.items() if tasks in probable}
        for share in shares:
            if tasks_of(share) not in buffer.packed:
                buffer.packed[tasks_of(share)] = self._reader.share(buffer.of(share), candidates.staleness)
                return True
        return False
