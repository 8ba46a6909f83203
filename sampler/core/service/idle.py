"""What a sampler waits for: each reason for which it plays nothing, as its heartbeat says it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shared.documents.run import InferenceService
from shared.processes.waits import Wait
from shared.store.outlook import Outlook

SAMPLING = ("sampling", "sampling without a gate")
AskOutlook = Callable[[], Awaitable[Outlook]]
DOWN = "an engine of every policy that takes turns"


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The database's last known state. `seq_limit` None: no gate; 0: nothing may be opened yet."""

    paused: bool = False
    seq_limit: int | None = 0
    doing: str | Wait = "starting"


def engine_wait(services: Sequence[InferenceService]) -> Wait:
    """`services`: those that are known, in any state."""
    known = [f"{s.url} is {s.status}{f' ({s.error})' if s.error else ''}" for s in services]
    return Wait(DOWN, "; ".join(known) or "none is registered", "a keeper reports each UP")


def tools_wait(names: Sequence[str]) -> Wait:
    return Wait(f"tool server {', '.join(names)}", "no call or session reaches it", "it answers again")


def rules_wait(problems: Sequence[str]) -> Wait:
    return Wait("rules of the run that it can apply", "; ".join(problems), "it is started anew with what they need")


def pause_wait(run: str) -> Wait:
    return Wait("the run to go on", "it is paused", f"`tandem resume {run}`")


async def doing_of(view: DatabaseState, outlook: AskOutlook, *, idle: bool) -> str | Wait:
    """`idle`: it plays nothing."""
    return _task_wait(await outlook(), view.seq_limit) if idle and view.doing in SAMPLING else view.doing


async def agents_wait(view: DatabaseState, outlook: AskOutlook, attempts: int, busy: int, idle_s: float) -> str | Wait:
    """Of a gateway with `attempts` open, `busy` of them with a request: agents elsewhere come when they like."""
    if busy or view.doing not in SAMPLING:
        return view.doing
    if attempts:
        end = f"an agent sends one, or an attempt had none for {idle_s:g} s and is lost (attempt_idle_s)"
        return Wait("requests of agents", f"{attempts} attempts are open, and none has a request", end)
    return Wait("an agent", f"no attempt is open; tasks: {await outlook()}", "one claims a task")


def _task_wait(seen: Outlook, seq_limit: int | None) -> Wait:
    if seen.next_seq is None:
        until = "one is due again, or more are imported" if seen.may_give_data else "more are imported"
        return Wait("a task", str(seen), until)
    if seq_limit is not None and seen.next_seq >= seq_limit:
        full = f"enough groups are open for the trainer's next steps (its max_staleness): {seen}"
        return Wait("a task", full, "the trainer takes a step, or a group is settled")
    return Wait("a task", f"none that it can play is free now: {seen}", "one is due, or another sampler plays it")
