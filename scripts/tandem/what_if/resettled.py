"""What `tandem resettle` prints: groups and scores, before and after."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from shared.outside_console import OutsideConsole

SHOWN = 5


@dataclass(slots=True)
class Resettled:
    """`before`, `after`: {task: status, outcome, slots}. `failed`: {task: why its scorer gave no score}."""

    run: str
    target: str
    copied: int = 0
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    after: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def print_outcome(outcome: Resettled) -> int:
    """Print it; the exit status."""
    out = OutsideConsole()
    rows = Table()
    for name in ("", "groups", "with data", "episodes", "mean score", "scores that differ"):
        rows.add_column(name, justify="right" if name else "left")
    old, new = _scores(outcome.before), _scores(outcome.after)
    differing = sum(1 for name, score in new.items() if old.get(name) != score)
    for run, groups, scores, note in (
        (outcome.run, outcome.before, old, ""),
        (outcome.target, outcome.after, new, str(differing)),
    ):
        with_data = sum(1 for group in groups.values() if group["status"] == "settled")
        mean = f"{math.fsum(scores.values()) / len(scores):.4f}" if scores else "–"
        rows.add_row(run, str(len(groups)), str(with_data), str(len(scores)), mean, note)
    out.print(rows)
    out.print(f"{outcome.copied - len(outcome.failed)} groups were written now", markup=False)
    for task, why in list(outcome.failed.items())[:SHOWN]:
        out.print(f"left out: {task}: {why}", soft_wrap=True, markup=False)
    if outcome.failed:
        out.print(
            f"{len(outcome.failed)} groups have no score, so they are not in run {outcome.target}; the same command tries them "
            "again",
            soft_wrap=True,
        )
        return 1
    out.print(
        f"train on it: python -m trainer --run NEW --data_run {outcome.target} …; look at it: tandem show {outcome.target}",
        soft_wrap=True,
        markup=False,
    )
    return 0


def _scores(groups: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], float]:
    return {
        (task, at): slot["score"]
        for task, group in groups.items()
        for at, slot in enumerate(group["slots"])
        if slot.get("score") is not None
    }
