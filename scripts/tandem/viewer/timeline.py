"""A window of time as lanes: each process and engine is a lane, in which what overlaps lies in rows below each other.

The drawing is made here, as numbers of an SVG of `WIDTH` units; the page needs no script. Lanes above `MOST_LANES` are folded
into one, which shows how many of them were busy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shared.store.views import timeline as views
from tandem.viewer.page_request import BadQuestion, PageRequest

WIDTH = 1000.0  # units, of the window
MOST_LANES = 64
MOST_ROWS = 16  # of one lane; what overlaps more lies over the last row
ROW_HEIGHT, LANE_GAP = 7, 6
COLOURS = 8
SHORTEST = 1.0  # units of a bar
FIRST_YEAR, LAST_YEAR = 1970, 9000  # a window fits before and behind
WINDOWS_S = (10, 30, 60, 300, 1800)
FOLDED_SLICES = 100
LANE_KINDS = ("trainer", "engine", "sampler", "gateway")  # the order of lanes, by the beginning of their names


@dataclass(frozen=True, slots=True)
class LaneBar:
    x: float
    width: float
    row: int
    colour: str  # a class: v0 … v7 by version, wait, none
    kind: str
    title: str
    link: str | None
    is_wrong: bool


@dataclass(frozen=True, slots=True)
class TimeLane:
    name: str
    y: int
    height: int
    bars: list[LaneBar]
    num_spans: int
    busy_fraction: float  # of the window: with at least one span that is no wait
    versions: list[int]
    folded: int = 0  # lanes in it; 0: it is one


@dataclass(frozen=True, slots=True)
class Timeline:
    begin: datetime | None
    end: datetime | None
    seconds: int
    windows: tuple[int, ...]
    lanes: list[TimeLane]
    height: int
    announced: list[tuple[float, str, int]]  # (x, policy, version)
    ticks: list[tuple[float, str]]
    is_cut: bool
    earlier: str | None
    later: str | None


async def timeline_page(request: PageRequest) -> Timeline:
    seconds = request.number("seconds", 30, least=1, most=86_400)
    end = _time(request.text("end")) or await views.newest_end(request.store)
    if end is None:
        return Timeline(None, None, seconds, WINDOWS_S, [], 0, [], [], False, None, None)
    window = await views.window_of(request.store, end, seconds)
    lanes = _lanes(window)
    return Timeline(
        begin=window.begin,
        end=window.end,
        seconds=seconds,
        windows=WINDOWS_S,
        lanes=lanes,
        height=max((lane.y + lane.height for lane in lanes), default=0) + LANE_GAP,
        announced=[(_x(one.at, window), one.policy, one.version) for one in window.announced],
        ticks=_ticks(window, seconds),
        is_cut=window.is_cut,
        earlier=(end - timedelta(seconds=seconds)).isoformat(timespec="milliseconds"),
        later=(end + timedelta(seconds=seconds)).isoformat(timespec="milliseconds") if request.text("end") else None,
    )


def _time(given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        time = datetime.fromisoformat(given)
        time = time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
    except (ValueError, OverflowError) as exc:
        raise BadQuestion(f"end is {given[:80]!r}; expected a time as 2026-01-31T12:00:00") from exc
    if not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise BadQuestion(f"end is {given[:80]!r}; expected a year from {FIRST_YEAR} to {LAST_YEAR}")
    return time


def _lanes(window: views.Window) -> list[TimeLane]:
    def place(name: str) -> tuple[int, str]:
        return next((n for n, kind in enumerate(LANE_KINDS) if name.startswith(kind)), len(LANE_KINDS)), name

    names = sorted(window.lanes, key=place)
    shown = names if len(names) <= MOST_LANES else names[: MOST_LANES - 1]
    made: list[TimeLane] = []
    y = 0
    for name in shown:
        made.append(_lane(name, window.lanes[name], window, y))
        y += made[-1].height + LANE_GAP
    hidden = names[len(shown) :]
    if hidden:
        made.append(_folded([window.lanes[name] for name in hidden], window, y))
    return made


def _lane(name: str, spans: Sequence[views.LaneSpan], window: views.Window, y: int) -> TimeLane:
    ends: list[datetime] = []  # of the last span of each row
    bars = []
    for span in sorted(spans, key=lambda one: (one.begin, one.end)):
        row = next((n for n, end in enumerate(ends) if end <= span.begin), None)
        if row is None:
            row = min(len(ends), MOST_ROWS - 1)
            ends += [span.end] if row == len(ends) else []
        ends[row] = max(ends[row], span.end)
        bars.append(_bar(span, row, window))
    versions = sorted({span.version for span in spans if span.version is not None})
    busy = _covered([span for span in spans if span.kind != "wait"], window)
    return TimeLane(name, y, max(2, len(ends)) * ROW_HEIGHT, bars, len(spans), busy, versions)


def _bar(span: views.LaneSpan, row: int, window: views.Window) -> LaneBar:
    left, right = _x(span.begin, window), _x(span.end, window)
    colour = "wait" if span.kind == "wait" else "none" if span.version is None else f"v{span.version % COLOURS}"
    seconds = (span.end - span.begin).total_seconds()
    weights = "" if span.version is None or span.kind == "step" else f", weights {span.version}"
    title = f"{span.kind}: {span.label}{weights}, {seconds:.2f} s"
    return LaneBar(
        round(left, 2), round(max(SHORTEST, right - left), 2), row, colour, span.kind, title, span.link, span.is_wrong
    )


def _folded(lanes: Sequence[Sequence[views.LaneSpan]], window: views.Window, y: int) -> TimeLane:
    """How many of the lanes were busy in each slice of the window: four steps of colour."""
    slice_s = (window.end - window.begin).total_seconds() / FOLDED_SLICES
    busy = [0] * FOLDED_SLICES
    for spans in lanes:
        at: set[int] = set()
        for span in spans:
            first = int((span.begin - window.begin).total_seconds() / slice_s)
            last = int((span.end - window.begin).total_seconds() / slice_s)
            at.update(range(max(0, first), min(FOLDED_SLICES - 1, last) + 1))
        for place in at:
            busy[place] += 1
    width = WIDTH / FOLDED_SLICES
    bars = [
        LaneBar(
            n * width,
            width,
            0,
            f"busy{-(-4 * number // len(lanes))}",
            "busy",
            f"{number} of {len(lanes)} busy",
            None,
            False,
        )
        for n, number in enumerate(busy)
        if number
    ]
    total = sum(map(len, lanes))
    versions = sorted({span.version for spans in lanes for span in spans if span.version is not None})
    share = sum(busy) / (FOLDED_SLICES * len(lanes))
    return TimeLane(f"{len(lanes)} more", y, 2 * ROW_HEIGHT, bars, total, share, versions, len(lanes))


def _covered(spans: Sequence[views.LaneSpan], window: views.Window) -> float:
    seconds, until = 0.0, window.begin
    for span in sorted(spans, key=lambda one: one.begin):
        begin, end = max(span.begin, until), min(span.end, window.end)
        if end > begin:
            seconds += (end - begin).total_seconds()
            until = end
    return seconds / (window.end - window.begin).total_seconds()


def _x(at: datetime, window: views.Window) -> float:
    whole = (window.end - window.begin).total_seconds()
    return min(WIDTH, max(0.0, (at - window.begin).total_seconds() / whole * WIDTH))


def _ticks(window: views.Window, seconds: int) -> list[tuple[float, str]]:
    number = 6
    times = [window.begin + timedelta(seconds=seconds * n / number) for n in range(number)]
    return [(_x(at, window), at.strftime("%H:%M:%S")) for at in times]
