"""The reward curve: a PNG by matplotlib, and the terminal's by plotext."""

from collections.abc import Sequence
from pathlib import Path

import plotext
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scripts.launch.figures import MOVING_STEPS, EvalPoint, StepMetrics, moving_average


def write_png(path: Path, metrics: StepMetrics, evals: Sequence[EvalPoint], title: str) -> None:
    """Reward by step: every step (faint), moving average, by source, and the evaluations."""
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    axes = figure.add_subplot()
    steps, rewards = series(metrics, "reward/mean")
    axes.plot(steps, rewards, color="tab:blue", alpha=0.25, linewidth=1)
    axes.plot(steps, moving_average(rewards), color="tab:blue", linewidth=2, label="training, moving average")
    for source in metrics.sources():
        x, y = series(metrics, f"reward_by_source/{source}")
        axes.plot(x, moving_average(y), linewidth=1, linestyle="--", label=source)
    if evals:
        rewards = [point.reward for point in evals]
        beside = [[p.reward - p.low for p in evals], [p.high - p.reward for p in evals]]
        steps = [point.step for point in evals]
        axes.errorbar(steps, rewards, beside, fmt="o-", color="black", capsize=3, label="held-out tasks, 95 %")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("reward")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.set_title(title)
    axes.legend(loc="lower right")
    figure.savefig(path)


def terminal_text(metrics: StepMetrics, evals: Sequence[EvalPoint], width: int = 80, height: int = 16) -> str:
    """The same in characters, without colors: moving average, and the evaluations as `o`."""
    steps, rewards = series(metrics, "reward/mean")
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.draw(figure.signal(steps, moving_average(rewards), marker="braille").lines())
    if evals:
        figure.draw(figure.signal([p.step for p in evals], [p.reward for p in evals], marker="o"))
    figure.ruler("y").lim(0, 1)
    figure.label(f"reward by optimizer step (mean over {MOVING_STEPS}); o: held-out tasks", "x")
    return str(plotext.uncolorize(str(figure.build()))).rstrip()


def series(metrics: StepMetrics, name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of one metric."""
    steps = [step for step in sorted(metrics.lines) if name in metrics.lines[step]]
    return steps, [metrics.lines[step][name] for step in steps]
