"""Asynchronous against synchronous: the bundled example once per `max_staleness`, at the same number of steps and samples.

    python -m scripts.compare_staleness NAME [--staleness 0,1,2,4,8] [--repeats 1] [--json FILE] [--png FILE]

0 is synchronous: the samplers open the groups of a step only once the weights of the step before are published. Each
setting is one launch, `output/NAME_s<staleness>_<repeat>` (the same name continues, finished launches are not run again),
one after the other on this machine, so compare ratios of one call. Seconds are those of training, evaluations left out.

How old data really gets depends on who is slower: where the trainer waits for samplers it is young whatever is allowed.
`TANDEM_TRAINER_PREFIX_TREES=false` makes the trainer the slower side, so that data is as old as `max_staleness` allows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.launch.figures import StepMetrics, mean, moving_average
from scripts.results import add_json, write_json
from shared.errors import DataError
from shared.interrupt import run_command
from shared.written_file import written_whole

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "assets/minirl.yml"
TABLE_WIDTH = 150  # in a file or a pipe


@dataclass(frozen=True)
class Outcome:
    """One launch. Seconds are wall time; `idle` is the trainer's share of its time spent waiting for data."""

    max_staleness: int
    repeat: int
    steps: int
    episodes_trained: int
    tokens_trained: int
    reward_before: float
    reward_after: float
    training_s: float
    staleness_mean: float
    staleness_largest: float
    idle: float
    stale_records: int
    mismatch_nats: float
    curve: list[float]  # training reward by step, moving average
    elapsed_s: list[float]  # wall time since the first step's end, by step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="prefix of the runs' names")
    parser.add_argument("--staleness", default="0,1,2,4,8", help="values of max_staleness (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="launches per value (default: %(default)s)")
    add_json(parser)
    parser.add_argument("--png", type=Path, help="draw the curves into this file")
    args = parser.parse_args()
    values = [int(value) for value in args.staleness.split(",")]
    outcomes: list[Outcome] = []
    for repeat in range(args.repeats):
        for value in values if repeat % 2 == 0 else reversed(values):  # a slow drift of the machine hits all alike
            outcomes.append(play(args.name, value, repeat))
            show(outcomes)
    write_json(args.json, outcomes)
    if args.png:
        draw(outcomes, args.png)


def play(name: str, max_staleness: int, repeat: int) -> Outcome:
    """Launch the example with this setting, unless that is done; SystemExit with the launcher's status where it fails."""
    run = f"{name}_s{max_staleness}_{repeat}"
    environment = {
        **os.environ,
        "CONFIG": os.environ.get("CONFIG", CONFIG),
        "TANDEM_TRAINER_MAX_STALENESS": str(max_staleness),
        "TANDEM_TRAINER_SEED": str(repeat),
    }
    launch = subprocess.run(
        [sys.executable, "-m", "scripts.launch", run], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    if launch.returncode:
        raise SystemExit(launch.returncode)
    return read(ROOT / "output" / run, max_staleness, repeat)


def read(folder: Path, max_staleness: int, repeat: int) -> Outcome:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    metrics = StepMetrics(folder / "metrics.jsonl")
    metrics.read()
    times = metrics.column("time")
    return Outcome(
        max_staleness=max_staleness,
        repeat=repeat,
        steps=summary["steps"],
        episodes_trained=int(sum(metrics.column("data/records"))),
        tokens_trained=summary["tokens"]["trained"],
        reward_before=summary["eval"]["before"]["reward"],
        reward_after=summary["eval"]["after"]["reward"],
        training_s=summary["seconds"]["training"],
        staleness_mean=summary["staleness"]["mean"],
        staleness_largest=summary["staleness"]["max"],
        idle=round(mean(metrics.column("perf/idle_fraction")), 3),
        stale_records=summary["faults"]["stale_records"],
        mismatch_nats=summary["mismatch_mean_nats"],
        curve=[round(value, 4) for value in moving_average(metrics.column("reward/mean"))],
        elapsed_s=[round(time - times[0], 1) for time in times],
    )


# ---------------------------------------------------------------------- for people


def show(outcomes: list[Outcome]) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=TABLE_WIDTH)
    console.print(_table(outcomes))


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(
        "max_staleness", "launches", "episodes", "reward before", "reward after", "training s", "synchronous / this",
        "staleness mean, max", "trainer waits", "stale records",
    )  # fmt: skip
    synchronous = _median(outcomes, 0, "training_s")
    for value in sorted({outcome.max_staleness for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.max_staleness == value]
        seconds = _median(outcomes, value, "training_s")
        assert seconds is not None
        table.add_row(
            f"{value}{' (synchronous)' if value == 0 else ''}",
            str(len(mine)),
            f"{statistics.mean(o.episodes_trained for o in mine):,.0f}",
            " ".join(f"{o.reward_before:.3f}" for o in mine),
            " ".join(f"{o.reward_after:.3f}" for o in mine),
            f"{seconds:.0f}",
            f"{synchronous / seconds:.2f}" if synchronous else "–",
            f"{statistics.mean(o.staleness_mean for o in mine):.2f}, {max(o.staleness_largest for o in mine):.0f}",
            f"{statistics.mean(o.idle for o in mine):.0%}",
            f"{statistics.mean(o.stale_records for o in mine):.0f}",
        )
    return table


def _median(outcomes: list[Outcome], max_staleness: int, name: str) -> float | None:
    values = [getattr(outcome, name) for outcome in outcomes if outcome.max_staleness == max_staleness]
    return statistics.median(values) if values else None


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Training reward by step (do samples count for as much?) and by wall time (what is won?)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    values = sorted({outcome.max_staleness for outcome in outcomes})
    for outcome in outcomes:
        color = f"C{values.index(outcome.max_staleness)}"
        label = f"max_staleness {outcome.max_staleness}" if outcome.repeat == 0 else None
        by_step.plot(range(1, len(outcome.curve) + 1), outcome.curve, color=color, label=label, linewidth=1.5)
        by_time.plot(outcome.elapsed_s, outcome.curve, color=color, linewidth=1.5)
        by_time.plot(outcome.elapsed_s[-1], outcome.reward_after, "o", color=color)
        by_step.plot(len(outcome.curve), outcome.reward_after, "o", color=color)
    by_step.set(xlabel="optimizer step", ylabel="training reward, moving average; dots: held-out tasks", ylim=(0, 1.02))
    by_time.set(xlabel="seconds of training")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
    by_step.legend(loc="lower right")
    figure.suptitle("The bundled example, synchronous (0) and asynchronous, at the same number of samples")
    try:
        with written_whole(path) as beside:
            figure.savefig(beside)
    except DataError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    run_command(main)
