"""Two runs: their curves by step in one chart each, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tandem.viewer.curves import Chart, Series, Values
from tandem.viewer.dashboard import chosen_policy, curves
from tandem.viewer.page_request import PageRequest

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
    """`?x=hours`: by the time since each run's first step."""
    first, second = [await _charts(request) for request in (a, b)]
    by_hours = a.text("x") == "hours"
    if by_hours:
        first, second = _from_start(first), _from_start(second)
    charts = [
        _together(first.get(key), second.get(key), (a.run.name, b.run.name), by_hours)
        for key in dict.fromkeys([*first, *second])
    ]
    settings = [await request.store.settings.last(request.run) for request in (a, b)]
    return RunComparison(names, a.run.name, b.run.name, charts, differences(*settings))


async def _charts(request: PageRequest) -> dict[str, Chart]:
    policies = sorted(request.run.admission) or await request.store.questions.policies()
    _, charts = await curves(request, chosen_policy(request, policies))
    return {chart.key: chart for chart in charts}


def _from_start(charts: Mapping[str, Chart]) -> dict[str, Chart]:
    """The charts of one run with times in seconds since its first point."""
    known = [time for chart in charts.values() for time in chart.times if time is not None]
    start = min(known, default=0.0)
    return {
        key: replace(chart, times=[None if time is None else time - start for time in chart.times])
        for key, chart in charts.items()
    }


def _together(a: Chart | None, b: Chart | None, names: tuple[str, str], by_hours: bool) -> Chart:
    one = a or b
    assert one is not None, "a key is of either"
    places = [_places(chart, by_hours) if chart else [] for chart in (a, b)]
    step_at = {
        place: step
        for chart, at in zip((a, b), places, strict=True)
        if chart
        for place, step in zip(at, chart.steps, strict=True)
        if place is not None
    }
    every = sorted(step_at)
    series = []
    for chart, at, name in zip((a, b), places, names, strict=True):
        for line in chart.series[:MOST_SERIES] if chart else ():
            moved = [_at(every, at, values) for values in (line.values, line.low, line.high)]
            series.append(Series(f"{name}: {line.label}", *moved))
    times: Values = list(every) if by_hours else [None] * len(every)
    return Chart(one.key, one.title, one.unit, one.note, [step_at[place] for place in every], times, series)


def _places(chart: Chart, by_hours: bool) -> Values:
    """Where each point stands: its step, or the seconds since the run's first point."""
    return chart.times if by_hours else list(chart.steps)


def _at(every: Sequence[float], own: Values, values: Values) -> Values:
    if not values:
        return []
    by_place = dict(zip(own, values, strict=True))
    return [by_place.get(place) for place in every]


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[SettingDifference]:
    """Of the resolved settings of every kind of service; names that only one has are `–` in the other."""
    left, right = _flat(a), _flat(b)
    rows = []
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            rows.append(SettingDifference(name, left.get(name, "–"), right.get(name, "–")))
    return rows[:MOST_DIFFERENCES]


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = repr(value)[:LONGEST_VALUE]
    return flat
