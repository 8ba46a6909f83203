"""The condition of a run: its document's state, and what its processes' heartbeats say. A process that was killed writes no end.

ended      every trainer wrote its end                 crashed    a trainer failed, or fell silent, without its end
trained    every policy has weights of its last step   abandoned  no process is alive, and work is left
played     never trained, every task is over           unstarted  no process was ever heard of
stopped    its processes were stopped, as by Ctrl-C    paused, running
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from shared.documents.run import Run, Worker
from shared.documents.states import RunState
from shared.errors import MalformedDocument
from shared.store import Store
from shared.store.malformed import log_once
from shared.store.runs import FAILED, STOPPED, has_left

STEP = "step"  # of a trainer's statistics: the last step that it took


class Condition(StrEnum):
    """What a run is doing."""

    UNSTARTED = "unstarted"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"
    TRAINED = "trained"
    PLAYED = "played"
    CRASHED = "crashed"
    STOPPED = "stopped"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"  # its document cannot be read


OPEN_CONDITIONS = (Condition.UNSTARTED, Condition.RUNNING, Condition.PAUSED)  # of a run that goes on


@dataclass(frozen=True, slots=True)
class RunCondition:
    """`reason` and `since` (server's clock, None: not known) say why and from when on; "" of a run that goes on."""

    condition: Condition
    reason: str = ""
    since: datetime | None = None


async def condition_of(store: Store, known: tuple[list[Worker], set[str]] | None = None) -> RunCondition:
    """Derive it now. Reads the run's document, its workers (unless `known`), and at most one task of each state."""
    try:
        run = await store.runs.get()
    except MalformedDocument as exc:
        log_once(str(exc))
        return RunCondition(Condition.UNKNOWN, str(exc))
    if run is None:
        return RunCondition(Condition.UNKNOWN, "it has no run document")
    if run.state is RunState.ENDED:
        ends = sorted(run.ends.items())
        reason = "; ".join(f"policy {policy} after step {end.step}: {end.reason}" for policy, end in ends)
        return RunCondition(Condition.ENDED, reason, max((e.ended_at for _, e in ends if e.ended_at), default=None))
    if run.state is RunState.PAUSED:
        return RunCondition(Condition.PAUSED, f"`tandem resume {store.run}` continues it")
    if await _is_trained(store, run):
        return RunCondition(Condition.TRAINED, "every policy has weights of its last step")
    workers, live = known or await store.workers.all_and_live()
    crashes = (_crash(policy, workers, live) for policy in _open_policies(run))
    crashed = [crash for crash in crashes if crash is not None]
    if crashed:
        return crashed[0]
    if not run.trainer_generations and await _is_played(store):
        return RunCondition(Condition.PLAYED, "every task is over")
    if not workers and not run.trainer_generations:
        return RunCondition(Condition.UNSTARTED, "no process was ever started")
    if workers and not live:
        return _of_silent(max(workers, key=_heartbeat_of))
    return RunCondition(Condition.RUNNING)


def _of_silent(last: Worker) -> RunCondition:
    """Of a run without a living process; `last`: the one that was heard of last."""
    if last.doing == STOPPED:
        reason = f"its processes were stopped, the last was {last.id}; the command that started them continues the run"
        return RunCondition(Condition.STOPPED, reason, last.heartbeat)
    activity = f": {last.doing}" if last.doing.startswith(FAILED) else ""
    return RunCondition(Condition.ABANDONED, f"no process is alive; the last was {last.id}{activity}", last.heartbeat)


def _open_policies(run: Run) -> list[str]:
    """Policies whose last trainer start has no end."""
    return sorted(set(run.trainer_generations) - set(run.ends))


def _crash(policy: str, workers: list[Worker], live: set[str]) -> RunCondition | None:
    """None: a trainer of the policy is alive, was stopped with all other processes, or was never heard of."""
    own = [worker for worker in workers if worker.kind == "trainer" and worker.id.startswith(f"trainer:{policy}:")]
    if not own or any(worker.id in live for worker in own):
        return None
    last = max(own, key=_heartbeat_of)
    step = int(last.stats.get(STEP) or 0)
    # Of several ranks that end together, the one that failed first made the others fall silent.
    failed = sorted(
        (w for w in own if w.doing.startswith(FAILED) and _heartbeat_of(w) >= _heartbeat_of(last)), key=_heartbeat_of
    )
    if failed or last.doing.startswith(FAILED):
        why = f"failed after step {step}: {(failed or [last])[0].doing.removeprefix(FAILED)}"
    elif has_left(last.doing):
        if not live:
            return None
        why = f"stopped after step {step} without its end"
    else:
        why = f"is not heard of any more, after step {step}: it was {last.doing or 'starting'}"
    return RunCondition(Condition.CRASHED, f"the trainer of policy {policy} {why}", last.heartbeat)


def _heartbeat_of(worker: Worker) -> datetime:
    return worker.heartbeat or datetime.min


async def _is_trained(store: Store, run: Run) -> bool:
    """Whether the weights of the last step exist although not every trainer has written its end."""
    for policy, admission in run.admission.items():
        newest = await store.versions.newest(policy)
        if admission.num_steps is None or newest is None or newest.step < admission.num_steps:
            return False
    return bool(run.admission)


async def _is_played(store: Store) -> bool:
    return await store.questions.has_tasks() and not await store.questions.has_unended_tasks()
