"""Forks: other continuations of one stored turn, as a group of its own that no trainer reads.

dispatch ─▶ `Origin`: its record, task and exact ids ─▶ a task of split `fork` ─▶ samplers play its slots

Group 0 of a dispatch has the id main:fork:0:DISPATCH; the same command finds it again. Samplers read the origin when they play.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.documents import DispatchedSamplingTask, Record, Slot, Task, task_id
from shared.documents.fork import ForkOrigin
from shared.documents.states import BranchCause
from shared.episodes.state import EpisodeState
from shared.errors import ConfigError
from shared.names import FORK_SPLIT
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.tasks.sampler_names import BUNDLED

FORKABLE = "mcp"  # of the bundled samplers


@dataclass(frozen=True, slots=True)
class Origin:
    """`turn`: the number of the turn in the episode."""

    record: Record
    state: EpisodeState
    turn: int

    @property
    def dispatch(self) -> DispatchedSamplingTask:
        return self.state.turns[self.turn].dispatch

    @property
    def prompt(self) -> list[int]:
        """The exact ids that the engine read for the turn."""
        return self.state.prompt_of(self.turn)

    @property
    def earlier(self) -> Sequence[DispatchedSamplingTask]:
        return [turn.dispatch for turn in self.state.turns[: self.turn]]

    @property
    def num_earlier_calls(self) -> int:
        return sum(len(dispatch.tool_calls) for dispatch in self.earlier)


async def read_origin(store: Store, dispatch: str) -> Origin:
    """Raises ConfigError where the turn does not exist, or cannot be forked."""
    record_id, _, number = dispatch.rpartition(":")
    record = await store.records.get(record_id)
    if record is None or not number.isdecimal():
        raise ConfigError(
            f"run {store.run} has no dispatch {dispatch!r}; `tandem show {store.run} RECORD` lists those of one"
        )
    state = EpisodeState(record, (await store.records.dispatches_of([record.id]))[record.id])
    if int(number) >= len(state.turns):
        raise ConfigError(f"record {record.id} has {len(state.turns)} turns, from 0; it has no turn {number}")
    reason = not_forkable(state, int(number))
    if reason is not None:
        raise ConfigError(
            f"dispatch {dispatch} cannot be forked: {reason}. A turn of a single conversation with tools can be"
        )
    return Origin(record, state, int(number))


def not_forkable(state: EpisodeState, number: int) -> str | None:
    """Why no continuation can be sampled from here; None: one can."""
    record, turns = state.record, state.turns
    if [turn.number for turn in turns] != list(range(len(turns))) or state.problems:
        return f"its documents contradict each other: {(state.problems or ['turns are missing'])[0]}"
    if record.session is not None:
        return "an agent played its episode through the gateway, and cannot be put back to an earlier turn"
    if record.actors:
        return f"several actors played its episode: {', '.join(record.actors)}"
    if others := sorted({turn.policy for turn in turns} - {record.policy}):
        return f"its episode has turns of policy {others[0]}"
    for turn in turns[: number + 1]:
        if turn.thread is not None:
            return f"turn {turn.number} is of thread {turn.thread!r}"
        if turn.dispatch.branch_cause is BranchCause.CONTEXT_POLICY:
            return f"a context policy rewrote the history before turn {turn.number}"
        if turn.dispatch.response is None:
            return f"turn {turn.number} has no reply"
    return None


def fork_task(origin: Origin, task: Task, fork: ForkOrigin, n: int, group: int, seq: int) -> Task:
    """`task`: the origin's. `group`: 0 for the first fork of the dispatch."""
    return Task(
        id=task_id(task.policy, FORK_SPLIT, group, fork.dispatch),
        tid=fork.dispatch,
        split=FORK_SPLIT,
        epoch=group,
        policy=task.policy,
        seq=seq,
        source=task.source,
        payload=task.payload.model_copy(update={"fork": fork}),
        num_generations=n,
        slots=[Slot(traj_id=k, free_at=EPOCH) for k in range(n)],
        free_at=EPOCH,
    )


async def queue_fork(store: Store, origin: Origin, fork: ForkOrigin, n: int, *, again: bool) -> tuple[Task, bool]:
    """The group, and whether it is new. Without `again` the first group of the dispatch, if there is one, as it is.

    Raises ConfigError where the origin's task is gone, or another bundled sampler than the standard one plays it.
    """
    task = await store.tasks.get(origin.record.task)
    if task is None:
        raise ConfigError(
            f"task {origin.record.task} of record {origin.record.id} is gone: nothing says how to score a fork"
        )
    if (kind := task.payload.sampler) in BUNDLED and kind != FORKABLE:
        raise ConfigError(
            f"dispatch {fork.dispatch} cannot be forked: the sampler {kind!r} played its episode. A turn of one conversation "
            f"with tools (sampler {FORKABLE!r}) can be"
        )
    group = 0
    while (found := await store.tasks.get(task_id(task.policy, FORK_SPLIT, group, fork.dispatch))) and again:
        group += 1
    new = found is None
    while found is None:  # repeated where another fork took the place in the order
        seq = await store.tasks.next_seq(task.policy, FORK_SPLIT)
        made = fork_task(origin, task, fork, n, group, seq)
        await store.tasks.insert_new([made])
        found = await store.tasks.get(made.id)
    return found, new
