"""How long a machine that does not lead a run stays: until its trainers and the evaluation of their last weights are over."""

import time
from collections.abc import Callable

from shared.documents.states import RunState
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from tandem.launch.rounds import POLL_S, EvalRound
from tandem.launch.settings import LaunchConfig


async def until_over(store: Store, config: LaunchConfig, show: Callable[[str], None]) -> str:
    """Wait for the end of the run; returns why this machine stops. One that joins a run that has ended waits `start_timeout_s`
    for it to be continued."""
    if config.machines.join and await is_over(store, config.policy):
        show(f"the run has ended; waiting {config.start_timeout_s:g} s for a trainer to continue it")
        if await _lasts(store, config.policy, config.start_timeout_s):
            return "the run has ended, and no trainer continues it"
    await _end_of_run(store, config.policy)
    return "the run has ended"


async def _lasts(store: Store, policy: str, limit_s: float) -> bool:
    """Whether the run is still over after `limit_s`; False as soon as it is not."""
    deadline = time.monotonic() + limit_s
    end = f"one does, for {limit_s:g} s at most (start_timeout_s)"
    with waiting(Wait("a trainer that continues the run", "the run has ended", end)):
        timer = _timer(store)
        while await is_over(store, policy):
            if time.monotonic() > deadline:
                return True
            await timer.pause(longest_s=max(0.0, deadline - time.monotonic()))
    return False


async def _end_of_run(store: Store, policy: str) -> None:
    timer = _timer(store)
    while True:
        if await is_over(store, policy):
            return
        await timer.pause()


def _timer(store: Store) -> PollTimer:
    """Of what `is_over` reads."""
    return PollTimer(store.signals, (Signal.RUN, Signal.VERSIONS, Signal.DATA, Signal.TASKS), POLL_S)


async def is_over(store: Store, policy: str) -> bool:
    """Whether every trainer has ended and, if there are held-out tasks, the newest version has played them."""
    run, newest = await store.runs.get(), await store.versions.newest(policy)
    if run is None or run.state is not RunState.ENDED or newest is None:
        return False
    _, held_out = await store.evaluation.count_round(policy, 0)
    return not held_out or await EvalRound(store, policy, newest.version).is_complete()
