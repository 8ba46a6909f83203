"""`tandem tail`: episodes, groups and steps of a run as they end, and processes as they come and go."""

import asyncio
import json
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from shared.outside_text import visible
from shared.store import Store
from shared.store.condition import condition_of
from shared.store.events import HEADLINE, KINDS, LOOK_BACK, Event
from shared.store.pipelines import EPOCH
from shared.store.runs import FAILED, has_left
from tandem.commands.connect import AsJson, Connection, RunName, console, with_store

MOST_AT_ONCE = 500  # events of a kind in one query; more come with the next
LONGEST_CELL = 200

EXAMPLES = """Examples:

`tandem tail demo`  the last ten events, then what comes, until Ctrl-C

`tandem tail demo --only step --only group`  without single episodes

`tandem tail demo --since 2026-11-23T13:05:14`  goes on where an earlier one ended

`tandem tail demo --no-follow --json`  what there was, for programs
"""


class Tail:
    """Prints each event once. `since`: nothing of before is printed."""

    def __init__(self, store: Store, out: Console, only: list[str], since: datetime | None, as_json: bool) -> None:
        self._store, self._out, self._as_json = store, out, as_json
        self._kinds = [kind for kind in KINDS if not only or kind in only]
        self._since = since or EPOCH
        self._newest = dict.fromkeys(self._kinds, self._since)  # its time, of each kind
        # Where the next query of a kind begins: time, after which id.
        self._places = dict.fromkeys(self._kinds, (self._since, ""))
        # What was printed and the next look may find again, of each kind: id and time.
        self._seen: dict[str, OrderedDict[tuple[str, datetime], None]] = {kind: OrderedDict() for kind in self._kinds}
        self._workers: dict[str, str] | None = None
        self._condition = ""
        self.newest = since

    async def begin(self, last: int) -> None:
        """The last events of all kinds together; then only later ones."""
        now = await self._store.questions.server_time()
        # Before the last events are read, so that one which ends in between is printed: now or by the next look.
        for kind in self._kinds:
            self._seen[kind] |= {(event.id, event.at): None for event in await self._all_since(kind, now)}
        last_events = [event for kind in self._kinds for event in await self._store.events.last(kind, last)]
        ordered = sorted(last_events, key=lambda event: (event.at, event.id))
        for event in ordered[-last:] if last else []:
            self._print(event)
        self._newest = dict.fromkeys(self._kinds, now)
        self._places = dict.fromkeys(self._kinds, (now - LOOK_BACK, ""))

    async def _all_since(self, kind: str, now: datetime) -> list[Event]:
        """Of the time that the first look goes back."""
        events = await self._store.events.since(kind, now - LOOK_BACK, MOST_AT_ONCE)
        page = events
        while len(page) == MOST_AT_ONCE:
            page = await self._store.events.since(kind, page[-1].at, MOST_AT_ONCE, page[-1].id)
            events += page
        return events

    async def poll(self) -> bool:
        """Print what is new. Returns whether there may be more right now."""
        new_events: list[Event] = []
        full = False
        for kind, (at, after) in self._places.items():
            events = await self._store.events.since(kind, at, MOST_AT_ONCE, after)
            if len(events) == MOST_AT_ONCE:
                full = True
                self._newest[kind] = max(self._newest[kind], events[-1].at)
                self._places[kind] = events[-1].at, events[-1].id  # a page further, also within one moment
            else:  # the next look begins earlier than this one ended: a document may be seen late
                newest = max([self._newest[kind], *(event.at for event in events)])
                self._newest[kind] = newest
                self._places[kind] = max(newest - LOOK_BACK, self._since), ""
            new_events += events
        for event in sorted(new_events, key=lambda event: (event.at, event.id)):
            if (event.id, event.at) not in self._seen[event.kind]:
                self._print(event)
        for kind, seen in self._seen.items():
            while seen and next(iter(seen))[1] < self._newest[kind] - LOOK_BACK:
                seen.popitem(last=False)
        return full

    async def poll_processes(self) -> None:
        workers = {worker.id: worker.doing for worker in await self._store.workers.all()}
        before = self._workers
        now = await self._store.questions.server_time()
        for name, doing in workers.items() if before is not None else ():
            if before is not None and name not in before:
                self._say(now, "process", name, "has joined")
            elif before is not None and has_left(doing) and not has_left(before[name]):
                self._say(now, "process", name, doing if doing.startswith(FAILED) else "has stopped")
        self._workers = workers
        condition = await condition_of(self._store)
        if self._condition and condition.condition != self._condition:
            self._say(now, "run", self._store.run, f"is {condition.condition}  {condition.reason}")
        self._condition = condition.condition

    def _print(self, event: Event) -> None:
        self._seen[event.kind][event.id, event.at] = None
        self.newest = max(event.at, self.newest or event.at)
        self._say(event.at, event.kind, event.id, _summary(event))

    def _say(self, at: datetime, kind: str, name: str, told: str) -> None:
        if self._as_json:
            typer.echo(json.dumps({"at": at.isoformat(), "kind": kind, "id": name, "told": told}))
            return
        line = Text.assemble((f"{at:%H:%M:%S}", "dim"), f" {kind:<7} ", (visible(name), "bold"), f"  {visible(told)}")
        self._out.print(line, soft_wrap=True)


def tail(
    run: RunName,
    last: Annotated[int, typer.Option("--last", min=0, max=1000, help="Earlier events to begin with.")] = 10,
    since: Annotated[datetime | None, typer.Option("--since", help="All events from this time on (UTC).")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help=f"A kind of event: {', '.join(KINDS)}.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until Ctrl-C.")] = True,
    interval_s: Annotated[float, typer.Option("--interval_s", min=0.1, help="Time between looks.")] = 1.0,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Print episodes, settled groups and steps as they end, processes that join, stop or fail, and the end of the run.

    Ctrl-C ends it and says how to go on. Reads a bounded number of documents per look, by an index.
    """
    unknown = [kind for kind in only or () if kind not in KINDS]
    if unknown:
        raise typer.BadParameter(f"--only {unknown[0]}: expected {', '.join(KINDS)}")

    async def work(store: Store) -> None:
        shown = Tail(store, console(), only or [], _plain(since), as_json)
        try:
            if since is None:
                await shown.begin(last)
            while True:
                more = await shown.poll()
                if not more and not follow:
                    return
                if not more:
                    await shown.poll_processes()
                    await asyncio.sleep(interval_s)  # until something ends
        finally:
            if follow and shown.newest is not None and not as_json:
                on = f"`tandem tail {run} --since {shown.newest.isoformat(timespec='seconds')}` goes on"
                console().print(on, soft_wrap=True, markup=False)

    with_store(db_connection_string, run, work, read_only=True)


def _plain(given: datetime | None) -> datetime | None:
    return given.astimezone(UTC).replace(tzinfo=None) if given is not None and given.tzinfo else given


def _summary(event: Event) -> str:
    one = event.document
    if event.kind == "episode":
        score = "" if one.get("score") is None else f"score {one['score']:.4g}"
        counts = f"{one.get('num_turns', 0)} turns, {one.get('num_tokens', 0)} tokens"
        cells = [str(one.get("status")), score, str(one.get("termination") or ""), counts, str(one.get("error") or "")]
    elif event.kind == "group":
        scores = " ".join("–" if score is None else f"{score:.3g}" for score in one.get("scores") or [])
        cells = [str(one.get("status")), str(one.get("outcome") or ""), f"scores {scores}" if scores else ""]
    else:
        metrics = one.get("metrics") or {}
        cells = [f"{name} {metrics[name]:.4g}" for name in HEADLINE if metrics.get(name) is not None]
    return "  ".join(cell[:LONGEST_CELL] for cell in cells if cell)
