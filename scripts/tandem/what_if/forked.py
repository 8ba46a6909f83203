"""What became of a fork: its continuations next to the reply that the origin has, and where each parts from it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from shared.documents import Record, Task
from shared.documents.passing import num_passed
from shared.episodes.origin import Origin
from shared.episodes.state import EpisodeState, TurnState
from shared.evaluation.pass_rates import Estimate, bootstrap, wilson
from shared.outside_console import OutsideConsole
from shared.store import Store

SHOWN_CHARS = 160  # of a reply


@dataclass(frozen=True, slots=True)
class ForkedEpisode:
    """One slot. `parts_at`: the first turn, as the origin counts them, and the token in its reply, that differ from the origin's;
    None: nothing differs. `state` is None for a slot that was never played."""

    slot: int
    record: Record | None
    score: float | None
    error: str | None
    state: EpisodeState | None
    parts_at: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Fork:
    task: Task
    origin: Origin
    continuations: Sequence[ForkedEpisode]

    @property
    def scores(self) -> list[float]:
        return [one.score for one in self.continuations if one.score is not None]

    @property
    def mean(self) -> Estimate | None:
        """Over the continuations, each a trial. None: none has a score."""
        scores = self.scores
        if not scores:
            return None
        return wilson(scores) if min(scores) >= 0 and max(scores) <= 1 else bootstrap(scores)


async def read_fork(store: Store, origin: Origin, task: Task) -> Fork:
    names = {slot.traj_id: slot.record_id for slot in task.slots if slot.record_id is not None}
    records = await store.records.get_many(list(names.values()))
    dispatches = await store.records.dispatches_of(list(records))
    episodes = []
    for slot in task.slots:
        record = records.get(names.get(slot.traj_id, ""))
        state = None if record is None else EpisodeState(record, dispatches[record.id])
        parts = None if state is None else parting(origin, state.turns)
        episodes.append(ForkedEpisode(slot.traj_id, record, slot.score, slot.error, state, parts))
    return Fork(task, origin, episodes)


def parting(origin: Origin, fork: Sequence[TurnState]) -> tuple[int, int] | None:
    """The first turn of the origin, and the token of its reply, with which the fork leaves it; None: it has the same replies."""
    remaining = origin.state.turns[origin.turn :]
    for number, (theirs, ours) in enumerate(zip(remaining, fork, strict=False), start=origin.turn):
        if theirs.output_ids != ours.output_ids:
            pairs = zip(theirs.output_ids, ours.output_ids, strict=False)
            shorter = min(len(theirs.output_ids), len(ours.output_ids))
            return number, next((k for k, (one, other) in enumerate(pairs) if one != other), shorter)
    return None if len(remaining) == len(fork) else (origin.turn + min(len(remaining), len(fork)), 0)


def print_fork(fork: Fork, *, as_json: bool) -> int:
    """Print it; the exit status: 1 where a slot has no score."""
    if as_json:
        OutsideConsole(soft_wrap=True).print(json.dumps(_as_json(fork)), markup=False)
    else:
        _print(fork)
    return 0 if len(fork.scores) == len(fork.continuations) else 1


def _print(fork: Fork) -> None:
    out, origin = OutsideConsole(), fork.origin
    score = "no score" if origin.record.score is None else f"score {origin.record.score:g}"
    out.print(
        f"{fork.task.id}: {len(fork.continuations)} continuations of turn {origin.turn} of record {origin.record.id}",
        soft_wrap=True,
        markup=False,
    )
    rows = Table()
    for name in ("slot", "score", "ended by", "turns", "tokens", "weights", "parts at", "reply there"):
        rows.add_column(
            name, justify="left" if name in ("slot", "ended by", "weights", "reply there") else "right", overflow="fold"
        )
    left = origin.state.turns[origin.turn :]
    tokens = sum(len(turn.output_ids) for turn in left)
    ended = origin.record.termination or origin.record.status.value
    weights = _weights(left)
    rows.add_row(
        "origin", score.removeprefix("score "), ended, str(len(left)), str(tokens), weights, "", _text(left, 0)
    )
    for one in fork.continuations:
        rows.add_row(*_cells(one, origin.turn))
    out.print(rows)
    for one in fork.continuations:
        if one.score is None and one.error:
            out.print(f"slot {one.slot} has no score: {one.error}", soft_wrap=True, markup=False)
    mean = fork.mean
    if mean is not None:
        passed = num_passed(fork.scores)
        out.print(
            f"score from here {mean} (mean, 95 % interval), {passed} of {len(fork.scores)} pass; the origin has {score}",
            soft_wrap=True,
            markup=False,
        )


def _cells(one: ForkedEpisode, first: int) -> tuple[str, ...]:
    if one.record is None or one.state is None:
        return (str(one.slot), "–", "not played", "–", "–", "–", "–", "")
    parts = "same" if one.parts_at is None else f"turn {one.parts_at[0]}, token {one.parts_at[1]}"
    turns = one.state.turns
    return (
        str(one.slot),
        "–" if one.score is None else f"{one.score:g}",
        one.record.termination or one.record.status.value,
        str(len(turns)),
        str(one.state.num_tokens),
        _weights(turns),
        parts,
        _text(turns, 0 if one.parts_at is None else one.parts_at[0] - first),
    )


def _weights(turns: Sequence[TurnState]) -> str:
    versions = np.unique([version for turn in turns for version, _ in turn.dispatch.weight_versions])
    return " ".join(f"v{version:g}" for version in versions)


def _text(turns: Sequence[TurnState], number: int) -> str:
    """The reply of a turn, on one line; "" if there is none."""
    reply = " ".join((turns[number].reply or "").split()) if number < len(turns) else ""
    return escape(reply[:SHOWN_CHARS] + ("…" if len(reply) > SHOWN_CHARS else ""))


def _as_json(fork: Fork) -> dict[str, Any]:
    mean = fork.mean
    return {
        "group": fork.task.id,
        "origin": {"record": fork.origin.record.id, "turn": fork.origin.turn, "score": fork.origin.record.score},
        "mean": None if mean is None else {"value": mean.value, "low": mean.low, "high": mean.high},
        "continuations": [
            {
                "slot": one.slot,
                "record": None if one.record is None else one.record.id,
                "score": one.score,
                "termination": None if one.record is None else one.record.termination,
                "parts_at": one.parts_at,
                "error": one.error,
                "versions": [] if one.record is None else one.record.policy_versions,
            }
            for one in fork.continuations
        ],
    }
