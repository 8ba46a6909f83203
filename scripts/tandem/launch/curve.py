"""The reward curve: a PNG by matplotlib, and text by plotext."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import plotext
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tandem.launch.figures import MOVING_STEPS, EvalPoint, StepMetrics, moving_average


def write_png(
    path: Path, metrics: Mapping[str, StepMetrics], evals: Mapping[str, Sequence[EvalPoint]], title: str
) -> None:
    """Plot reward by step: every step (faint), moving average, by source, evaluations; one panel per policy."""
    figure = Figure(figsize=(8 * len(metrics), 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # no window, no global state
    for number, (policy, of_policy) in enumerate(metrics.items(), start=1):
        axes = figure.add_subplot(1, len(metrics), number)
        _draw(axes, of_policy, evals[policy])
        axes.set_title(title if len(metrics) == 1 else f"{title}: {policy}")
    figure.savefig(path)


def _draw(axes: Axes, metrics: StepMetrics, evals: Sequence[EvalPoint]) -> None:
    steps, rewards = series(metrics, "reward/mean")
    axes.plot(steps, rewards, color="tab:blue", alpha=0.25, linewidth=1)
    axes.plot(steps, moving_average(rewards), color="tab:blue", linewidth=2, label="training, moving average")
    for source in metrics.sources():
        x, y = series(metrics, f"reward_by_source/{source}")
        axes.plot(x, moving_average(y), linewidth=1, linestyle="--", label=source)
    if evals:
        intervals = [[p.reward - p.low for p in evals], [p.high - p.reward for p in evals]]
        values, at = [point.reward for point in evals], [point.step for point in evals]
        axes.errorbar(at, values, intervals, fmt="o-", color="black", capsize=3, label="held-out tasks, 95 %")
    low, high = limits([*rewards, *(p.low for p in evals), *(p.high for p in evals)])
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("reward")
    axes.set_ylim(low - 0.02, high + 0.02)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def terminal_text(
    metrics: StepMetrics, evals: Sequence[EvalPoint], width: int = 80, height: int = 16, *, whose: str = ""
) -> str:
    """The curve as text without colors: moving average, and evaluations as `o`."""
    steps, rewards = series(metrics, "reward/mean")
    averages = moving_average(rewards)
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.draw(figure.signal(steps, averages, marker="braille").lines())
    if evals:
        figure.draw(figure.signal([p.step for p in evals], [p.reward for p in evals], marker="o"))
    figure.ruler("y").lim(*limits([*averages, *(p.reward for p in evals)]))
    figure.label(f"reward {whose}by optimizer step (mean over {MOVING_STEPS}); o: held-out tasks", "x")
    return str(plotext.uncolorize(str(figure.build()))).rstrip()


def limits(rewards: Sequence[float]) -> tuple[float, float]:
    """The range [0, 1], extended to include all rewards."""
    return min(0.0, *rewards, 0.0), max(1.0, *rewards, 1.0)


def series(metrics: StepMetrics, name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of one metric."""
    steps = [step for step in sorted(metrics.lines) if name in metrics.lines[step]]
    return steps, [metrics.lines[step][name] for step in steps]
