"""Forks: other continuations of one stored turn, as a group of its own that no trainer reads.

dispatch ─▶ `Origin`: its record, task and exact ids ─▶ a task of split `fork` ─▶ samplers play its slots

Group 0 of a dispatch has the id main:fork:0:DISPATCH; the same command finds it again. Samplers read the origin when they play.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.documents import DispatchedSamplingTask, Record, Slot, Task, task_id
from shared.documents.fork import ForkOrigin
from shared.documents.states import BranchCause
from shared.episodes.state import EpisodeState, TurnState
from shared.errors import ConfigError
from shared.names import FORK_SPLIT, cut, shortened
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.tasks.sampler_names import BUNDLED

FORKABLE = "mcp"  # of the bundled samplers
MOST_DIGITS = 9  # of a turn's number
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """An answered turn before the one that is forked. `messages`: what was new in its conversation when it was asked."""

    turn: TurnState
    prompt: Sequence[int]
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Origin:
    """`turn`: the number of the turn in its record. `ancestor`: of a fork's episode, the turn that this one goes on from."""

    record: Record
    state: EpisodeState
    turn: int
    ancestor: "Origin | None" = None

    @property
    def dispatch(self) -> DispatchedSamplingTask:
        return self.state.turns[self.turn].dispatch

    @property
    def prompt(self) -> list[int]:
        """The exact ids that the engine read for the turn."""
        return self.state.prompt_of(self.turn)

    @property
    def path(self) -> list[EarlierTurn]:
        """Every turn of the conversation before this one, in order; also those of the episodes that a fork goes on from."""
        before = [] if self.ancestor is None else self.ancestor.path
        own = self.state.turns[: self.turn]
        return [*before, *(EarlierTurn(t, self.state.prompt_of(t.number), self._messages_of(t.number)) for t in own)]

    @property
    def messages(self) -> Sequence[Message]:
        """What was new in the conversation when the turn was asked."""
        return self._messages_of(self.turn)

    def _messages_of(self, number: int) -> Sequence[Message]:
        """A fork's first request shows the whole history again, of which the ancestor's messages are new."""
        if number == 0 and self.ancestor is not None:
            return self.ancestor.messages
        return self.state.turns[number].dispatch.messages

    @property
    def earlier(self) -> Sequence[DispatchedSamplingTask]:
        return [one.turn.dispatch for one in self.path]

    @property
    def num_earlier_calls(self) -> int:
        return sum(len(dispatch.tool_calls) for dispatch in self.earlier)


async def read_origin(store: Store, dispatch: str) -> Origin:
    """Raises ConfigError where the turn does not exist, or cannot be forked."""
    record_id, _, number = dispatch.rpartition(":")
    record = await store.records.get(record_id)
    if record is None or not number.isdecimal():
        raise ConfigError(await _no_dispatch(store, dispatch))
    state = EpisodeState(record, (await store.records.dispatches_of([record.id]))[record.id])
    if len(number) > MOST_DIGITS or int(number) >= len(state.turns):
        raise ConfigError(f"record {record.id} has {len(state.turns)} turns, from 0; it has no turn {cut(number, 40)}")
    reason = not_forkable(state, int(number))
    if reason is not None:
        raise ConfigError(
            f"dispatch {dispatch} cannot be forked: {reason}. A turn of a single conversation with tools can be"
        )
    ancestor = await read_origin(store, record.tid) if record.split == FORK_SPLIT else None
    return Origin(record, state, int(number), ancestor)


async def _no_dispatch(store: Store, dispatch: str) -> str:
    record = await store.records.get(dispatch)
    if record is None:
        return (
            f"run {store.run} has no dispatch {shortened(dispatch, 400)}; expected RECORD:TURN, the turn from 0. "
            f"`tandem show {store.run}` lists records, and `tandem show {store.run} RECORD` the turns of one"
        )
    turns = (await store.records.dispatches_of([record.id]))[record.id]
    which = f"{dispatch}:0 to {dispatch}:{len(turns) - 1}" if turns else "it has none"
    return f"{dispatch} is a record; expected one of its turns, {which}"


def not_forkable(state: EpisodeState, number: int) -> str | None:
    """Why no continuation can be sampled from here; None: one can."""
    record, turns = state.record, state.turns
    if [turn.number for turn in turns] != list(range(len(turns))) or state.problems:
        return f"its documents contradict each other: {(state.problems or ['turns are missing'])[0]}"
    if record.session is not None or any(turn.dispatch.client is not None for turn in turns):
        return "an agent played its episode through the gateway, and cannot be put back to an earlier turn"
    if record.actors:
        return f"several actors played its episode: {', '.join(record.actors)}"
    others = sorted({turn.policy for turn in turns} - {record.policy})
    if others:
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
    """The group, and whether it is new. Without `again` the first group of the dispatch, if there is one, as it is; of two
    commands that queue it at once, one finds the other's; two that ask `again` for the same at once may share one.

    Raises ConfigError where the origin's task is gone, another bundled sampler than the standard one plays it, or the group is
    deleted as soon as it is queued.
    """
    task = await store.tasks.get(origin.record.task)
    if task is None:
        raise ConfigError(
            f"task {origin.record.task} of record {origin.record.id} is gone: nothing says how to score a fork"
        )
    kind = await _played_by(store, origin, task)
    if kind in BUNDLED and kind != FORKABLE:
        raise ConfigError(
            f"dispatch {fork.dispatch} cannot be forked: the sampler {kind!r} played its episode. A turn of one conversation "
            f"with tools (sampler {FORKABLE!r}) can be"
        )
    group = 0
    while True:
        stored = await store.tasks.get(task_id(task.policy, FORK_SPLIT, group, fork.dispatch))
        new = stored is None
        while stored is None:  # repeated where another fork took the place in the order
            seq = await store.tasks.next_seq(task.policy, FORK_SPLIT)
            made = fork_task(origin, task, fork, n, group, seq)
            inserted = await store.tasks.insert_new([made])
            stored = await store.tasks.get(made.id)
            if inserted and stored is None:
                raise deleted_while_waiting(made.id)
        if not again or (new and is_of(stored, fork, n)):
            break
        group += 1
    if stored.created_at is None:  # the command that queued it was killed before it wrote the time
        await store.tasks.insert_new([stored])
        stored = await store.tasks.get(stored.id) or stored
    return stored, new


def deleted_while_waiting(task: str) -> ConfigError:
    """The error of a command whose group is gone."""
    return ConfigError(f"{task} was deleted while it waited; the same command queues it again")


def is_of(task: Task, fork: ForkOrigin, n: int) -> bool:
    """Whether a group is what these would be."""
    return (task.num_generations, task.payload.fork) == (n, fork)


async def _played_by(store: Store, origin: Origin, task: Task) -> str | None:
    """The name of the sampler: the task's, or what its process plays where a task names none; None: the standard one, or not
    known."""
    if task.payload.sampler is not None:
        return task.payload.sampler
    settings = await store.settings.of_worker(origin.record.worker)
    had = settings[0].values if settings else {}
    return str(had["sampler"]) if had.get("sampler") else None
