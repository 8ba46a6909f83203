"""What `tandem bisect` prints: a reply's log-prob under all kept weights, where it changed most, and the groups trained there."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.table import Table

from shared.documents import DBRecordData
from shared.outside_console import OutsideConsole
from tandem.what_if.sampled import SampledTurn, Spell

TOKENS_SHOWN = 5
RECORDS_OF = 2  # groups whose records are listed one by one
BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Moment:
    """The reply under the weights after `step` steps; `logprobs`: of each token."""

    step: int
    weights: str
    logprobs: npt.NDArray[np.float32]

    def value(self, token: int | None) -> float:
        return float(self.logprobs.sum(dtype=np.float64) if token is None else self.logprobs[token])


def predicted_changes(
    moments: Sequence[Moment], token: int | None, momentum: float, rates: Mapping[int, float]
) -> list[float]:
    """The change from each moment to the next that the data of a step in between asked for, without AdamW's momentum.

    A step moves the weights by rate · m / (1 − β^t), with m = β m' + (1 − β) u, where u is its own gradient: one that asks for
    the opposite of those before it may not even stop the movement. So here is what u did, from what m did: m is read off the
    changes, and for several steps in between u is taken as equal in all of them.
    """
    expected, m = [], 0.0
    for before, after in pairwise(moments):
        count, change = after.step - before.step, after.value(token) - before.value(token)
        moved = change * (1 - momentum**after.step) / rates.get(after.step, 1.0)  # the sum of m over the steps
        carried = m * sum(momentum**k for k in range(1, count + 1))
        u = (moved - carried) / sum(1 - momentum**k for k in range(1, count + 1))
        m = momentum**count * m + (1 - momentum**count) * u
        expected.append(u * rates.get(after.step, 1.0))
    return expected


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    """A group of one step. `push`: see `tandem.what_if.bisect`."""

    step: int
    data: Sequence[DBRecordData]
    push: float

    @property
    def task(self) -> str:
        return self.data[0].task


@dataclass(frozen=True, slots=True)
class Bisection:
    """`after`: the index of the first moment after the change."""

    record: str
    turn: SampledTurn
    token: int | None
    moments: Sequence[Moment]
    asked_for: Sequence[float]  # from each moment to the next
    after: int
    groups: Sequence[TrainedGroup]

    @property
    def change(self) -> float:
        return self.moments[self.after].value(self.token) - self.moments[self.after - 1].value(self.token)

    @property
    def own(self) -> float:
        """The change that the data of these steps asked for."""
        return self.asked_for[self.after - 1]

    @property
    def steps(self) -> list[int]:
        """The steps between the two moments."""
        return list(range(self.moments[self.after - 1].step + 1, self.moments[self.after].step + 1))

    def by_push(self) -> list[TrainedGroup]:
        """Those that pushed most in the direction of the change first."""
        sign = math.copysign(1.0, self.own)
        return sorted(self.groups, key=lambda group: -sign * group.push)

    def share(self, group: TrainedGroup) -> float:
        """Of all pushes of the steps, by size; negative: against the change."""
        total = sum(abs(one.push) for one in self.groups)
        return math.copysign(1.0, self.own) * group.push / total if total else 0.0


def print_bisection(bisection: Bisection, groups: int, spell: Spell, *, as_json: bool) -> None:
    out = OutsideConsole()
    if as_json:
        out.print(json.dumps(_as_json(bisection)), soft_wrap=True, markup=False)
        return
    what = (
        "the reply"
        if bisection.token is None
        else f"token {bisection.token} {spell([bisection.turn.ids[bisection.token]])!r} of the reply"
    )
    out.print(f"record {bisection.record}, turn {bisection.turn.number}: {what}", soft_wrap=True, markup=False)
    out.print(f"  {bisection.turn.dispatch.response.text if bisection.turn.dispatch.response else ''}", markup=False)
    out.print(_curve(bisection))
    steps = bisection.steps
    where = (
        f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]} (no weights are kept in between)"
    )
    way = "likelier" if bisection.own > 0 else "less likely"
    out.print(
        f"it turned in [bold]{where}[/bold]: its data asked for {bisection.own:+.4f}, {way}; "
        f"log-prob {bisection.change:+.4f} with the momentum of the steps before",
        soft_wrap=True,
    )
    _print_tokens(out, bisection, spell)
    _print_groups(out, bisection, groups)


def _curve(bisection: Bisection) -> Table:
    rows = Table()
    for name in ("step", "weights", "log-prob", "probability", "change", "its data asked for", ""):
        rows.add_column(name, justify="left" if name in ("weights", "") else "right")
    values = [moment.value(bisection.token) for moment in bisection.moments]
    low, high = min(values), max(values)
    for at, (moment, value) in enumerate(zip(bisection.moments, values, strict=True)):
        bar = "█" * (1 + round((BAR_WIDTH - 1) * (value - low) / (high - low))) if high > low else ""
        change = (f"{value - values[at - 1]:+.4f}", f"{bisection.asked_for[at - 1]:+.4f}") if at else ("", "")
        style = "bold red" if at == bisection.after else None
        mark = " ◀" if at == bisection.after else ""
        cells = (
            str(moment.step),
            moment.weights,
            f"{value:.4f}",
            f"{math.exp(min(0.0, value)):.3g}",
            *change,
            bar + mark,
        )
        rows.add_row(*cells, style=style)
    return rows


def _print_tokens(out: OutsideConsole, bisection: Bisection, spell: Spell) -> None:
    before, after = bisection.moments[bisection.after - 1].logprobs, bisection.moments[bisection.after].logprobs
    order = np.argsort(-np.abs(after - before))[:TOKENS_SHOWN].tolist()
    changes = [f"{spell([bisection.turn.ids[k]])!r} ({k}) {after[k] - before[k]:+.3f}" for k in order]
    out.print(f"tokens that changed most: {', '.join(changes)}", soft_wrap=True, markup=False)


def _print_groups(out: OutsideConsole, result: Bisection, groups: int) -> None:
    ranked = result.by_push()
    if not ranked:
        out.print("no group of these steps has its data in the database")
        return
    rows = Table(title="groups trained there, by their push in that direction", title_justify="left")
    for name in ("step", "task", "source", "rewards", "push", "share"):
        rows.add_column(name, justify="left" if name in ("task", "source", "rewards") else "right", overflow="fold")
    for group in ranked[:groups]:
        rewards = " ".join(f"{one.reward:g}" for one in group.data)
        share = f"{result.share(group):+.0%}"
        rows.add_row(
            str(group.step), escape(group.task), escape(group.data[0].source), rewards, f"{group.push:+.3g}", share
        )
    out.print(rows)
    if len(ranked) > groups:
        out.print(f"and {len(ranked) - groups} more (--groups)")
    for group in ranked[:RECORDS_OF]:
        out.print(f"{group.task}: its records", soft_wrap=True, markup=False)
        for one in group.data:
            advantages = sorted({dispatch.advantage for dispatch in one.dispatches if dispatch.trained})
            shown = ", ".join(f"{advantage:+.4f}" for advantage in advantages) or "none"
            out.print(f"  {one.record}  reward {one.reward:g}  advantage {shown}", soft_wrap=True, markup=False)


def _as_json(bisection: Bisection) -> dict[str, Any]:
    moments = [
        {"step": moment.step, "weights": moment.weights, "logprob": moment.value(bisection.token)}
        for moment in bisection.moments
    ]
    groups = [
        {
            "step": group.step,
            "task": group.task,
            "push": group.push,
            "share": bisection.share(group),
            "records": [
                {
                    "record": one.record,
                    "reward": one.reward,
                    "advantages": [dispatch.advantage for dispatch in one.dispatches],
                }
                for one in group.data
            ],
        }
        for group in bisection.by_push()
    ]
    return {
        "record": bisection.record,
        "turn": bisection.turn.number,
        "token": bisection.token,
        "moments": moments,
        "turned": {"steps": bisection.steps, "change": bisection.change, "asked_for": bisection.own},
        "groups": groups,
    }
