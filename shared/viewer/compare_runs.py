"""Two runs: their curves by step in one chart each, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.documents.run import Run
from shared.viewer.asked import PageRequest
from shared.viewer.curves import Chart, Series, Values
from shared.viewer.dashboard import chosen_policy, curves

MOST_SERIES = 2  # of each run in a chart
MOST_DIFFERENCES = 200
LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class SettingDifference:
    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class RunComparison:
    names: list[str]  # to choose from
    a: str
    b: str
    charts: list[Chart]
    settings: list[SettingDifference]


async def comparison(names: list[str], a: PageRequest, b: PageRequest) -> RunComparison:
    first, second = [await _charts(asked) for asked in (a, b)]
    charts = [
        _together(first.get(key), second.get(key), (a.run.name, b.run.name)) for key in dict.fromkeys([*first, *second])
    ]
    return RunComparison(names, a.run.name, b.run.name, charts, differences(a.run, b.run))


async def _charts(asked: PageRequest) -> dict[str, Chart]:
    policies = sorted(asked.run.admission) or await asked.store.questions.policies()
    _, charts = await curves(asked, chosen_policy(asked, policies))
    return {chart.key: chart for chart in charts}


def _together(a: Chart | None, b: Chart | None, names: tuple[str, str]) -> Chart:
    one = a or b
    assert one is not None, "a key is of either"
    steps = sorted({step for chart in (a, b) if chart for step in chart.steps})
    series = []
    for chart, name in zip((a, b), names, strict=True):
        for found in chart.series[:MOST_SERIES] if chart else ():
            placed = [_at(steps, chart.steps, values) for values in (found.values, found.low, found.high) if chart]
            series.append(Series(f"{name}: {found.label}", *placed))
    return Chart(one.key, one.title, one.unit, one.note, steps, series)


def _at(steps: Sequence[int], own: Sequence[int], values: Values) -> Values:
    if not values:
        return []
    by_step = dict(zip(own, values, strict=True))
    return [by_step.get(step) for step in steps]


def differences(a: Run, b: Run) -> list[SettingDifference]:
    """Of the resolved settings of every kind of service; names that only one has are `–` in the other."""
    left, right = _flat(a.configs), _flat(b.configs)
    found = []
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            found.append(SettingDifference(name, left.get(name, "–"), right.get(name, "–")))
    return found[:MOST_DIFFERENCES]


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = repr(value)[:LONGEST_VALUE]
    return found
