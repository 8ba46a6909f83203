"""An episode's state from its record and dispatches: threads, exact ids, replies, counts and scores so far.

    record, dispatches ─▶ turns, each with its parent ─▶ threads: the turns of one (policy, thread) in order

Nothing else is needed, and the record may be running: what a sampler holds in memory of an episode whose turns are written can
be built again here. Documents that contradict each other do not stop it: `problems` names them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.documents import DispatchedSamplingTask, Record
from shared.documents.packed import unpack_ints
from shared.documents.states import DispatchStatus, ParentKind

OPEN = (DispatchStatus.PENDING, DispatchStatus.RUNNING)  # written before it was asked, and not written after


@dataclass(frozen=True, slots=True)
class TurnState:
    """One request. `policy`: never None. `parent`: the number of the turn whose first `shared` tokens it begins with. `length`:
    tokens of its prompt and reply."""

    dispatch: DispatchedSamplingTask
    policy: str
    parent: int | None
    shared: int
    kind: ParentKind
    length: int

    @property
    def number(self) -> int:
        return self.dispatch.turn

    @property
    def thread(self) -> str | None:
        return self.dispatch.thread

    @property
    def is_open(self) -> bool:
        return self.dispatch.status in OPEN

    @property
    def reply(self) -> str | None:
        return None if self.dispatch.response is None else self.dispatch.response.text

    @property
    def output_ids(self) -> list[int]:
        response = self.dispatch.response
        return [] if response is None else unpack_ints(response.output_ids).tolist()


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One conversation. `name` is None for the policy's main one."""

    policy: str
    name: str | None
    turns: tuple[TurnState, ...]

    def label(self, owner: str) -> str:
        """As people read it; `owner` is the record's policy."""
        name = "main thread" if self.name is None else f"thread {self.name}"
        return name if self.policy == owner else f"{name} of policy {self.policy}"


class EpisodeState:
    """`turns` in the order in which they were asked, `threads` in the order of their first turns."""

    def __init__(self, record: Record, dispatches: Sequence[DispatchedSamplingTask]) -> None:
        self.record = record
        self.problems: list[str] = []
        self._turns: dict[int, TurnState] = {}
        numbers = {dispatch.id: dispatch.turn for dispatch in dispatches}
        for dispatch in sorted(dispatches, key=lambda d: d.turn):
            self._turns[dispatch.turn] = self._turn(dispatch, numbers)
        self.turns = tuple(self._turns.values())
        by_thread: dict[tuple[str, str | None], list[TurnState]] = {}
        for turn in self.turns:
            by_thread.setdefault((turn.policy, turn.thread), []).append(turn)
        self.threads = tuple(ThreadState(*key, tuple(turns)) for key, turns in by_thread.items())

    @property
    def open_turns(self) -> list[int]:
        """Turns that were asked and not written since: the episode is incomplete as long as there are any."""
        return [turn.number for turn in self.turns if turn.is_open]

    def was_retried(self, turn: TurnState) -> bool:
        """Whether an agent sent the same request once more after this one, and has the reply to that."""
        client = turn.dispatch.client
        return client is not None and any(
            later.number > turn.number
            and later.reply is not None
            and later.dispatch.client is not None
            and later.dispatch.client.identity == client.identity
            for later in self.turns
        )

    @property
    def num_tokens(self) -> int:
        """Sampled by engines."""
        return sum(len(turn.output_ids) for turn in self.turns)

    @property
    def num_tool_calls(self) -> int:
        return sum(len(turn.dispatch.tool_calls) for turn in self.turns)

    @property
    def scores(self) -> dict[str, float]:
        """{dispatch: score of the turn}, of those that have one."""
        return {turn.dispatch.id: turn.dispatch.score for turn in self.turns if turn.dispatch.score is not None}

    def turn(self, number: int) -> TurnState:
        """Raises KeyError for a turn that does not exist."""
        return self._turns[number]

    def ids_of(self, number: int) -> list[int]:
        """The ids that the engine read for a turn, and its reply. Raises KeyError for a turn that does not exist."""
        return self._first(number, self._turns[number].length)

    def prompt_of(self, number: int) -> list[int]:
        turn = self._turns[number]
        return self._first(number, turn.length - len(turn.output_ids))

    def _first(self, number: int, count: int) -> list[int]:
        """The first `count` ids of a turn's prompt and reply."""
        parts: list[list[int]] = []
        at: int | None = number
        while at is not None and count > 0:
            turn = self._turns[at]
            own = [*unpack_ints(turn.dispatch.prompt_ids).tolist(), *turn.output_ids]
            parts.append(own[: max(0, count - turn.shared)])
            at, count = turn.parent, min(count, turn.shared)
        return [token for part in reversed(parts) for token in part]

    def _turn(self, dispatch: DispatchedSamplingTask, numbers: dict[str, int]) -> TurnState:
        policy = dispatch.policy or self.record.policy
        parent, shared = None, 0
        if dispatch.parent is not None:
            parent = numbers.get(dispatch.parent)
            above = None if parent is None else self._turns.get(parent)
            problem = _problem(dispatch, policy, above)
            if problem is None:
                shared = dispatch.shared_length
            else:
                self.problems.append(f"turn {dispatch.turn}: {problem}")
                parent = None
        kind = ParentKind.ROOT
        if parent is not None and shared > 0:
            kind = ParentKind.BRIDGE if shared == self._turns[parent].length else ParentKind.FORK
        sampled = 0 if dispatch.response is None else len(unpack_ints(dispatch.response.output_ids))
        return TurnState(
            dispatch, policy, parent, shared, kind, shared + len(unpack_ints(dispatch.prompt_ids)) + sampled
        )


def _problem(dispatch: DispatchedSamplingTask, policy: str, parent: TurnState | None) -> str | None:
    if parent is None:
        return f"its parent {dispatch.parent} is no earlier turn"
    if parent.policy != policy:
        return f"its parent {dispatch.parent} is a turn of policy {parent.policy}; expected {policy}"
    if parent.dispatch.response is None:
        return f"its parent {dispatch.parent} has no reply"
    if not 0 <= dispatch.shared_length <= parent.length:
        return f"shares {dispatch.shared_length} tokens with {dispatch.parent}, which has {parent.length}"
    return None
