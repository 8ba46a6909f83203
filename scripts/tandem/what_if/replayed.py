"""What `tandem replay` prints: a record's log-probs as they are stored and as they were found again, token by token."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.table import Table

from shared.outside_console import OutsideConsole
from tandem.what_if.sampled import SampledEpisode, SampledTurn, Spell

CONTEXT_TOKENS = 12  # shown before a token


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """`found`: one log-prob for each token; NaN where the weights that sampled it could not be asked, for the reason `note`.
    What was asked and is no number is `-inf` (`asked`)."""

    sampled: SampledTurn
    recomputed: npt.NDArray[np.float32]
    note: str = ""

    @property
    def difference(self) -> npt.NDArray[np.float32]:
        """NaN where nothing was compared, infinite where either log-prob is no number."""
        with np.errstate(invalid="ignore"):
            apart: npt.NDArray[np.float32] = np.abs(self.recomputed - self.sampled.logprobs)
        broken = self.is_compared & ~(np.isfinite(self.recomputed) & np.isfinite(self.sampled.logprobs))
        apart[broken] = np.inf
        return apart

    @property
    def is_compared(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.recomputed)

    @property
    def compared(self) -> int:
        return int(self.is_compared.sum())


def at_full_weight(logprobs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Log-probs as they were told: one that is no number is not one that was not asked for."""
    return np.where(np.isnan(logprobs), np.float32(-np.inf), logprobs)


@dataclass(frozen=True, slots=True)
class Replay:
    """`by`: what computed the log-probs again, in words."""

    episode: SampledEpisode
    by: str
    turns: Sequence[ReplayedTurn]

    @property
    def compared(self) -> int:
        return sum(turn.compared for turn in self.turns)

    @property
    def largest(self) -> float:
        """0 if no token was compared."""
        return max((float(np.nanmax(turn.difference)) for turn in self.turns if turn.compared), default=0.0)

    def agrees(self, tolerance: float) -> bool:
        return self.compared > 0 and self.largest <= tolerance

    def biggest(self, count: int) -> list[tuple[ReplayedTurn, int]]:
        """The tokens with the largest differences, the largest first."""
        compared = [(turn, at) for turn in self.turns for at in np.flatnonzero(turn.is_compared).tolist()]
        return sorted(compared, key=lambda one: -float(one[0].difference[one[1]]))[:count]


def print_replay(replay: Replay, tolerance: float, show: int, spell: Spell, *, as_json: bool) -> int:
    """Print it; the exit status."""
    if as_json:
        OutsideConsole(soft_wrap=True).print(json.dumps(_as_json(replay, tolerance, show, spell)), markup=False)
    else:
        _print(replay, tolerance, show, spell)
    return 0 if replay.agrees(tolerance) else 1


def _print(replay: Replay, tolerance: float, show: int, spell: Spell) -> None:
    out = OutsideConsole()
    out.print(f"record {replay.episode.record.id}, computed again by {replay.by}", soft_wrap=True, markup=False)
    rows = Table()
    for name in ("turn", "weights", "tokens", "compared", "log-prob stored", "found", "mean |Δ|", "largest |Δ|"):
        rows.add_column(name, justify="left" if name == "weights" else "right")
    for turn in replay.turns:
        cells = _numbers_of(turn)
        weights = " ".join(f"v{version}×{count}" for version, count in turn.sampled.dispatch.weight_versions)
        rows.add_row(str(turn.sampled.number), weights, str(len(turn.recomputed)), str(turn.compared), *cells)
    out.print(rows)
    for line in [*(f"turn {t.sampled.number}: {t.note}" for t in replay.turns if t.note), *replay.episode.left_out]:
        out.print(f"not compared: {line}", soft_wrap=True, markup=False)
    biggest = replay.biggest(show)
    if biggest:
        out.print(_biggest(biggest, spell))
    summary = f"{replay.compared} tokens compared, largest |Δ log-prob| {replay.largest:.2e}, tolerance {tolerance:g}"
    verdict = "[green]agrees[/green]" if replay.agrees(tolerance) else "[red]differs[/red]"
    out.print(f"{verdict}: {summary}" if replay.compared else f"[red]nothing compared[/red]: {summary}", soft_wrap=True)


def _numbers_of(turn: ReplayedTurn) -> tuple[str, ...]:
    seen = turn.is_compared
    if not seen.any():
        return ("–",) * 4
    stored, recomputed, difference = turn.sampled.logprobs[seen], turn.recomputed[seen], turn.difference[seen]
    return (f"{stored.sum():.4f}", f"{recomputed.sum():.4f}", f"{difference.mean():.2e}", f"{difference.max():.2e}")


def _biggest(biggest: Sequence[tuple[ReplayedTurn, int]], spell: Spell) -> Table:
    rows = Table(title="the biggest differences", title_justify="left")
    for name in ("turn", "token", "id", "after", "text", "stored", "found", "Δ", "weights"):
        rows.add_column(name, justify="left" if name in ("after", "text") else "right", overflow="fold")
    for turn, at in biggest:
        one = turn.sampled
        before, text = _texts(one, at, spell)
        stored, recomputed = float(one.logprobs[at]), float(turn.recomputed[at])
        cells = (str(one.number), str(at), str(one.ids[at]), escape(before), escape(text))
        rows.add_row(
            *cells, f"{stored:.4f}", f"{recomputed:.4f}", f"{recomputed - stored:+.2e}", f"v{one.versions[at]}"
        )
    return rows


def _texts(turn: SampledTurn, at: int, spell: Spell) -> tuple[str, str]:
    before = [*turn.prompt[-CONTEXT_TOKENS:], *turn.ids[:at]][-CONTEXT_TOKENS:]
    return repr(spell(before))[1:-1], repr(spell([turn.ids[at]]))[1:-1]


def _as_json(replay: Replay, tolerance: float, show: int, spell: Spell) -> dict[str, Any]:
    turns = [
        {
            "turn": turn.sampled.number,
            "ids": turn.sampled.ids,
            "versions": turn.sampled.versions.tolist(),
            "stored": _numbers(turn.sampled.logprobs),
            "found": _numbers(turn.recomputed),
            "note": turn.note,
        }
        for turn in replay.turns
    ]
    biggest = [
        {"turn": turn.sampled.number, "token": at, "id": turn.sampled.ids[at], "text": spell([turn.sampled.ids[at]])}
        for turn, at in replay.biggest(show)
    ]
    return {
        "record": replay.episode.record.id,
        "by": replay.by,
        "compared": replay.compared,
        "largest_difference": replay.largest if np.isfinite(replay.largest) else None,  # JSON has no infinity
        "tolerance": tolerance,
        "agrees": replay.agrees(tolerance),
        "turns": turns,
        "biggest": biggest,
        "left_out": list(replay.episode.left_out),
    }


def _numbers(values: npt.NDArray[np.float32]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
