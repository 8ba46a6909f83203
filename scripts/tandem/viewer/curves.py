"""The curves of a run by step: which metrics are one chart, with its unit and its note, and their values with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from shared.store.views.dashboard import HeldOutScore, StepRow

Values = list[float | None]
CONFIDENT = 1.96  # standard errors, for 95 %


@dataclass(frozen=True, slots=True)
class Series:
    """`low` and `high`: the interval at each step; empty without one."""

    label: str
    values: Values
    low: Values = field(default_factory=list)
    high: Values = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chart:
    key: str
    title: str
    unit: str
    note: str
    steps: list[int]
    times: Values  # of each step, in seconds since 1970 (UTC); of a comparison by hours, since the run's first step
    series: list[Series]


# (key, title, unit, note, {metric: label}) of the charts whose values are metrics as they are.
PLAIN = (
    (
        "staleness",
        "Staleness of trained tokens",
        "optimizer steps",
        "Of tokens with a loss: how many steps the weights that sampled one were behind those that trained it.",
        {"data/staleness_mean": "mean", "data/staleness_max": "max"},
    ),
    (
        "mismatch",
        "Engine–trainer mismatch",
        "nats",
        "Difference of log-probs between engine and trainer for the same tokens. It should stay small and flat.",
        {"loss/mismatch_mean_nats": "mean", "loss/mismatch_p99_nats": "p99"},
    ),
    (
        "kl",
        "KL to the sampling weights",
        "nats",
        "k3 estimate, by token.",
        {"loss/k3_mean": "k3", "loss/k1_mean": "k1"},
    ),
    ("entropy", "Entropy", "nats", "Of the policy at trained tokens.", {"loss/entropy_mean_nats": "mean"}),
    (
        "clipping",
        "Clipped and masked tokens",
        "share",
        "Share of tokens whose gradient the loss clips or masks.",
        {"loss/clipped_fraction": "clipped", "loss/masked_fraction": "masked", "loss/capped_fraction": "capped"},
    ),
    (
        "queue",
        "Groups ready when the step began",
        "groups",
        "An empty queue: the trainer waits for samplers. A long one: samplers wait for the trainer.",
        {"data/ready_groups": "ready", "data/stale_groups": "stale"},
    ),
    (
        "time",
        "Time of a step",
        "s",
        "“Waits” is the trainer's time without enough groups.",
        {"time/total_s": "whole step", "time/wait_s": "waits", "learner/step_s": "computes"},
    ),
    ("grad", "Gradient norm", "", "Before clipping.", {"learner/grad_norm": "norm"}),
    (
        "variance",
        "Groups that teach nothing",
        "share",
        "Groups whose rewards are all the same: their advantages are zero.",
        {"data/zero_variance_fraction": "all the same"},
    ),
)
REWARD, SPREAD, SOURCE = "reward/mean", "reward/group_std", "reward_by_source/"
EPISODE_SPREAD = "reward/std"  # all that older runs have
SAMPLED, TRAINER_RATE = "data/tokens_with_loss", "perf/tokens_per_s"
NAMES = (REWARD, SPREAD, EPISODE_SPREAD, SAMPLED, TRAINER_RATE, *(name for chart in PLAIN for name in chart[4]))


def charts_of(
    rows: Sequence[StepRow], held_out: Sequence[HeldOutScore], versions: Mapping[int, tuple[int, datetime | None]]
) -> list[Chart]:
    """Those with any value, reward first. `versions`: {version: (its step, when it was announced)}"""
    steps, times = [row.step for row in rows], [_seconds(row.created_at) for row in rows]
    reward = [_reward(rows), *_by_source(rows)]
    made = [
        Chart("reward", "Reward of trained episodes", "", REWARD_NOTE, steps, times, reward),
        _held_out_chart(held_out, versions),
        Chart("throughput", "Throughput", "tokens/s", RATE_NOTE, steps, times, _rates(rows)),
    ]
    for key, title, unit, note, names in PLAIN:
        series = [Series(label, _values(rows, name)) for name, label in names.items()]
        made.append(Chart(key, title, unit, note, steps, times, series))
    return [chart for chart in map(_without_empty, made) if chart.series]


REWARD_NOTE = (
    "Mean of a step's episodes; the band is the 95 % interval, with one group as one observation. Of steps without "
    "reward/group_std (older runs) it is the widest that it can be."
)
RATE_NOTE = "Sampled: tokens with a loss per second between two steps. Trainer: tokens per second while it computes."


def _reward(rows: Sequence[StepRow]) -> Series:
    means = _values(rows, REWARD)
    errors = [_error(row) for row in rows]
    low = [None if m is None or e is None else m - e for m, e in zip(means, errors, strict=True)]
    high = [None if m is None or e is None else m + e for m, e in zip(means, errors, strict=True)]
    return Series("all", means, low, high)


def _error(row: StepRow) -> float | None:
    """Half of the interval. Episodes of a group share their task, so groups are counted, not episodes. The spread of episodes is
    never less than that of their groups' means: as if all episodes of a group were the same."""
    spread = row.metrics.get(SPREAD, row.metrics.get(EPISODE_SPREAD))
    return None if spread is None or not row.groups else CONFIDENT * spread / math.sqrt(row.groups)


def _by_source(rows: Sequence[StepRow]) -> list[Series]:
    names = sorted({name for row in rows for name in row.metrics if name.startswith(SOURCE)})
    return [Series(name.removeprefix(SOURCE), _values(rows, name)) for name in names] if len(names) > 1 else []


def _rates(rows: Sequence[StepRow]) -> list[Series]:
    sampled: Values = [None] if rows else []
    for before, row in pairwise(rows):
        tokens = row.metrics.get(SAMPLED)
        is_next = row.step == before.step + 1 and before.created_at and row.created_at
        seconds = (row.created_at - before.created_at).total_seconds() if is_next else 0.0  # type: ignore[operator]  # both are
        sampled.append(tokens / seconds if tokens is not None and seconds > 0 else None)
    return [Series("sampled", sampled), Series("trainer", _values(rows, TRAINER_RATE))]


def _held_out_chart(scores: Sequence[HeldOutScore], versions: Mapping[int, tuple[int, datetime | None]]) -> Chart:
    time_of = dict(versions[one.version] for one in scores if one.version in versions)
    at = sorted(time_of)
    series = []
    for source in sorted({one.source for one in scores}):
        by_step = {versions[one.version][0]: one for one in scores if one.source == source and one.version in versions}
        points = [by_step.get(step) for step in at]
        half = [None if one is None else CONFIDENT * one.std / math.sqrt(one.tasks) for one in points]
        series.append(
            Series(
                source or "all",
                [None if one is None else one.mean for one in points],
                [None if one is None or h is None else one.mean - h for one, h in zip(points, half, strict=True)],
                [None if one is None or h is None else one.mean + h for one, h in zip(points, half, strict=True)],
            )
        )
    if len(series) == 2:  # one source, and all of it
        series = series[:1]
    note = "Mean score of the held-out tasks, with the 95 % interval."
    return Chart("held_out", "Held-out score", "", note, at, [_seconds(time_of[step]) for step in at], series)


def _values(rows: Sequence[StepRow], name: str) -> Values:
    return [row.metrics.get(name) for row in rows]


def _seconds(time: datetime | None) -> float | None:
    """Since 1970. Stored times are UTC without a zone."""
    return None if time is None else time.replace(tzinfo=UTC).timestamp()


def _without_empty(chart: Chart) -> Chart:
    filled = [one for one in chart.series if any(value is not None for value in one.values)]
    return replace(chart, series=filled)
