"""Asynchronous against synchronous, and what is done with old data: the bundled example once per setting, with the same steps.

    python -m scripts.bench.compare_staleness NAME [--staleness 0,1,2,4,8] [--stale_data keep] [--slow_s 0] [--repeats 1]
                                             [--json FILE] [--png FILE] [--quick]

0 is synchronous: the samplers open the groups of a step only once the weights of the step before are published. Each
setting is one launch, `output/NAME_<stale_data><staleness>_<repeat>` (the same name continues, finished launches are not run
again), one after the other on this machine, so compare ratios of one call. Seconds are those of training, evaluations left out.

How old data really gets depends on who is slower: where the trainer waits for samplers, data is young at any max_staleness.
`TANDEM_TRAINER_PREFIX_TREES=false` makes the trainer the slower side, so that data is as old as `max_staleness` allows.

`--slow_s S` makes long episodes carry a lesson: every third task is a look-up, whose first tool call takes S·(2 + exp N(0, 1))
seconds, the others are sums (`scripts/bench/slow_tasks.py`). What is learned of look-ups is then the question; held-out tasks are
as quick as ever. `python -m scripts.bench.simulate_staleness` asks the same on a virtual clock, without models.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.bench.results import add_json, parsed, write_json
from scripts.bench.slow_tasks import EVAL_FILE, slow_tasks
from scripts.launch.figures import StepMetrics, mean, moving_average
from shared.errors import DataError
from shared.files.output_names import METRICS_FILE
from shared.files.written_file import written_whole
from shared.processes.interrupt import run_command

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "assets/example/minirl.yml"
TABLE_WIDTH = 190  # in a file or a pipe
QUICK_TRAINER = {"TANDEM_TRAINER_MAX_STEPS": "2", "TANDEM_TRAINER_GROUPS_PER_STEP": "2"}
QUICK_EVAL_TASKS = 8


@dataclass(frozen=True)
class LaunchFigures:
    """One launch. Seconds are wall time; `idle` is the trainer's share of its time spent waiting for data."""

    stale_data: str
    max_staleness: int
    repeat: int
    steps: int
    episodes_trained: int
    tokens_trained: int
    reward_before: float
    reward_after: float
    by_source: dict[str, list[float]]  # of held-out tasks: [before, after]
    duration_all_s: float  # mean of the episodes that were trained or set aside
    duration_trained_s: float
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
    parser.add_argument("--stale_data", default="keep", help="values of stale_data (default: %(default)s)")
    parser.add_argument("--slow_s", type=float, default=0.0, help="look-ups take about so long (default: as they are)")
    parser.add_argument("--repeats", type=int, default=1, help="launches per value (default: %(default)s)")
    add_json(parser)
    parser.add_argument("--png", type=Path, help="draw the curves into this file")
    args = parsed(parser, staleness="1")
    settings = [(rule, int(value)) for rule in args.stale_data.split(",") for value in args.staleness.split(",")]
    outcomes: list[LaunchFigures] = []
    with tempfile.TemporaryDirectory() as folder, slow_tasks(Path(folder), args.slow_s) as changed:
        if args.quick:
            changed |= QUICK_TRAINER | {"EVAL_FILE": str(_few_eval_tasks(Path(folder)))}
        for repeat in range(args.repeats):
            for rule, value in settings if repeat % 2 == 0 else reversed(settings):  # a slow drift hits all alike
                outcomes.append(play(args.name, rule, value, repeat, changed))
                show(outcomes)
    write_json(args.json, outcomes)
    if args.png:
        draw(outcomes, args.png)


def _few_eval_tasks(folder: Path) -> Path:
    lines = EVAL_FILE.read_text(encoding="utf-8").splitlines(keepends=True)
    path = folder / "eval.jsonl"
    path.write_text("".join(lines[:QUICK_EVAL_TASKS]), encoding="utf-8")
    return path


def play(name: str, stale_data: str, max_staleness: int, repeat: int, changed: Mapping[str, str]) -> LaunchFigures:
    """Launch the example with this setting, unless that is done; SystemExit with the launcher's status where it fails."""
    run = f"{name}_{stale_data}{max_staleness}_{repeat}"
    environment = {
        **os.environ,
        **changed,
        "CONFIG": os.environ.get("CONFIG", CONFIG),
        "TANDEM_TRAINER_STALE_DATA": stale_data,
        "TANDEM_TRAINER_MAX_STALENESS": str(max_staleness),
        "TANDEM_TRAINER_SEED": str(repeat),
    }
    launch = subprocess.run(
        [sys.executable, "-m", "scripts.launch", run], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    if launch.returncode:
        raise SystemExit(launch.returncode)
    return read(ROOT / "output" / run, stale_data, max_staleness, repeat)


def read(folder: Path, stale_data: str, max_staleness: int, repeat: int) -> LaunchFigures:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    metrics = StepMetrics(folder / METRICS_FILE)
    metrics.read()
    times = metrics.column("time")
    before, after = summary["eval"]["before"], summary["eval"]["after"]
    return LaunchFigures(
        stale_data=stale_data,
        max_staleness=max_staleness,
        repeat=repeat,
        steps=summary["steps"],
        episodes_trained=int(sum(metrics.column("data/records"))),
        tokens_trained=summary["tokens"]["trained"],
        reward_before=before["reward"],
        reward_after=after["reward"],
        by_source={
            source: [before["by_source"][source]["reward"], after["by_source"][source]["reward"]]
            for source in sorted(after["by_source"])
        },
        duration_all_s=summary["selection"]["duration_all_s"],
        duration_trained_s=summary["selection"]["duration_trained_s"],
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


def show(outcomes: list[LaunchFigures]) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=TABLE_WIDTH)
    console.print(_table(outcomes))


def _table(outcomes: list[LaunchFigures]) -> Table:
    table = Table(
        "stale_data", "max_staleness", "launches", "episodes", "reward before", "after", "after, by source", "training s",
        "synchronous / this", "staleness mean, max", "trainer waits", "stale records", "mean s of all, trained",
    )  # fmt: skip
    for rule, value in dict.fromkeys((outcome.stale_data, outcome.max_staleness) for outcome in outcomes):
        mine = [outcome for outcome in outcomes if (outcome.stale_data, outcome.max_staleness) == (rule, value)]
        synchronous, seconds = _seconds(outcomes, rule, 0), _seconds(outcomes, rule, value)
        assert seconds is not None
        table.add_row(
            rule,
            f"{value}{' (synchronous)' if value == 0 else ''}",
            str(len(mine)),
            f"{statistics.mean(o.episodes_trained for o in mine):,.0f}",
            " ".join(f"{o.reward_before:.3f}" for o in mine),
            " ".join(f"{o.reward_after:.3f}" for o in mine),
            ", ".join(
                f"{source} " + " ".join(f"{o.by_source[source][1]:.2f}" for o in mine) for source in mine[0].by_source
            ),
            f"{seconds:.0f}",
            f"{synchronous / seconds:.2f}" if synchronous else "–",
            f"{statistics.mean(o.staleness_mean for o in mine):.2f}, {max(o.staleness_largest for o in mine):.0f}",
            f"{statistics.mean(o.idle for o in mine):.0%}",
            f"{statistics.mean(o.stale_records for o in mine):.0f}",
            f"{statistics.mean(o.duration_all_s for o in mine):.1f}, "
            f"{statistics.mean(o.duration_trained_s for o in mine):.1f}",
        )
    return table


def _seconds(outcomes: list[LaunchFigures], stale_data: str, max_staleness: int) -> float | None:
    """Median."""
    mine = [o.training_s for o in outcomes if (o.stale_data, o.max_staleness) == (stale_data, max_staleness)]
    return statistics.median(mine) if mine else None


def draw(outcomes: list[LaunchFigures], path: Path) -> None:
    """Training reward by step (do samples count for as much?) and by wall time (what is won?)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    settings = list(dict.fromkeys((outcome.stale_data, outcome.max_staleness) for outcome in outcomes))
    for outcome in outcomes:
        setting = (outcome.stale_data, outcome.max_staleness)
        color = f"C{settings.index(setting)}"
        label = f"{setting[0]}, max_staleness {setting[1]}" if outcome.repeat == 0 else None
        by_step.plot(range(1, len(outcome.curve) + 1), outcome.curve, color=color, label=label, linewidth=1.5)
        by_time.plot(outcome.elapsed_s, outcome.curve, color=color, linewidth=1.5)
        by_time.plot(outcome.elapsed_s[-1], outcome.reward_after, "o", color=color)
        by_step.plot(len(outcome.curve), outcome.reward_after, "o", color=color)
    by_step.set(xlabel="optimizer step", ylabel="training reward, moving average; dots: held-out tasks", ylim=(0, 1.02))
    by_time.set(xlabel="seconds of training")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
    by_step.legend(loc="lower right")
    figure.suptitle("The bundled example, at the same number of trained samples")
    try:
        with written_whole(path, public=True) as temporary:
            figure.savefig(temporary)
    except DataError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    run_command(main)
