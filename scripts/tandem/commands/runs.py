"""`tandem runs`: the runs of a server. `tandem gc`: what may be deleted of it."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from shared.errors import TandemError
from shared.store import Store
from shared.store.archive import archive_run, entries
from shared.store.condition import Condition
from shared.store.connecting import connect, first_contact
from shared.store.primary import until_primary
from shared.store.run_sizes import SizedRun, foreign_collections, sized_run, sized_runs
from tandem.commands.connect import (
    CONNECT_TIMEOUT_S,
    PROBLEM,
    AsJson,
    Connection,
    ago,
    answer,
    complain,
    connection_string,
    console,
    print_records,
    table,
)

ANY_RUN = "any"  # in messages: no run is named
LIVE = (Condition.RUNNING, Condition.PAUSED, Condition.UNKNOWN)
DONE = (Condition.ENDED, Condition.TRAINED, Condition.PLAYED)
T = TypeVar("T")

EXAMPLES = """Examples:

`tandem runs`  every run of the server: condition, age, last sign of life, size

`tandem runs --json | jq -r '.[].name'`  for programs
"""
GC_EXAMPLES = """Examples:

`tandem gc`  runs that ended, crashed, or were stopped or abandoned more than 30 days ago, and what each takes

`tandem gc --older_than_days 7 --yes`  deletes those of more than a week ago

`tandem gc old_run --older_than_days 0 --yes`  deletes one run

`tandem gc --yes --archive archive`  writes each into archive/RUN.bson.gz first; `tandem data restore RUN FILE` brings it back
"""


def runs(as_json: AsJson = False, db_connection_string: Connection = None) -> None:
    """List the runs of a server, the oldest first."""
    listed, now = _on_server(db_connection_string, _listed)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in listed], default=str))
    else:
        _print(listed, now)


def gc(
    named: Annotated[list[str] | None, typer.Argument(metavar="[RUN]…", help="Only these runs.")] = None,
    older_than_days: Annotated[
        float, typer.Option("--older_than_days", min=0, help="Only runs without a sign of life for this long.")
    ] = 30,
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it, it only lists.")] = False,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="FOLDER", help="With --yes: write each run's database into FOLDER/RUN.bson.gz first."
        ),
    ] = None,
    db_connection_string: Connection = None,
) -> None:
    """List runs that may be deleted, and how much each takes; with --yes, delete their databases. That cannot be undone.

    Never deleted: a run that is running, paused or not readable, or of which a process is alive; a run whose data (`data_run`)
    another run needs that is not done; a database with collections that are not Tandem's. Needs a user who may drop
    databases (the administrator).
    Checkpoints and weights in output/RUN are not touched.
    """

    async def work(client: Any) -> tuple[list[SizedRun], list[str], datetime]:
        listed, now = await _listed(client)
        retained = [f"{name}: no such run" for name in sorted(set(named or ()) - {row.name for row in listed})]
        gone: list[SizedRun] = []
        needed_by = {data: row.name for row in listed if row.condition not in DONE for data in row.data_runs}
        for row in (row for row in listed if not named or row.name in named):
            why = await _why_kept(client, row, now, older_than_days, needed_by)
            if why is None and yes:  # it may have been started while the others were deleted
                again = await sized_run(Store(client, row.name))
                why = "it is gone" if again is None else await _why_kept(client, again, now, older_than_days, needed_by)
                if why is None and archive is not None:
                    why = await _archived(Store(client, row.name), archive / f"{row.name}.bson.gz")
                if why is None:
                    await client.drop_database(row.name)
            if why is None:
                gone.append(row)
            elif named or (yes and _is_over(row, now, older_than_days)):
                retained.append(f"{row.name}: {why}")
        return gone, retained, now

    gone, retained, now = _on_server(db_connection_string, work)
    _print(gone, now)
    total = _size(sum(row.bytes for row in gone))
    console().print(f"{len(gone)} runs, {total}: {'deleted' if yes else 'may be deleted with --yes'}")
    for line in retained:
        complain(f"kept: {line}")
    if retained:
        raise typer.Exit(PROBLEM)


def _is_over(row: SizedRun, now: datetime, days: float) -> bool:
    last = row.last_sign
    return row.condition not in LIVE and last is not None and now - last >= timedelta(days=days)


async def _archived(store: Store, file: Path) -> str | None:
    """None: the file is written and read again as a whole."""
    try:
        counts = await archive_run(store, file)
        if Counter(collection for collection, _ in entries(file)) != counts:
            return f"{file} does not hold what was written"
    except TandemError as exc:
        return str(exc)
    _print_file(file, sum(counts.values()))
    return None


def _print_file(file: Path, documents: int) -> None:
    console().print(f"{file}: {documents:,} documents, {_size(file.stat().st_size)}", soft_wrap=True)


async def _why_kept(client: Any, row: SizedRun, now: datetime, days: float, needed_by: Mapping[str, str]) -> str | None:
    """None: it may be deleted."""
    if row.condition in LIVE:
        return f"it is {row.condition}"
    if row.alive:  # a sampler of a crashed trainer, a trainer that still writes the last checkpoint
        return f"{row.alive} of its processes are alive"
    if row.name in needed_by:  # its trainer copies the data again when it starts again
        return f"run {needed_by[row.name]}, which is not done, trains on its data"
    if not _is_over(row, now, days):
        return f"its last sign of life was {ago(row.last_sign, now)} ago (--older_than_days)"
    others = await foreign_collections(Store(client, row.name))
    if others:
        return f"its database has collections that are not Tandem's: {', '.join(others)}; move or drop them first"
    return None


async def _listed(client: Any) -> tuple[list[SizedRun], datetime]:
    hello = await client.admin.command("hello")
    return await sized_runs(client), hello["localTime"]


def _on_server(given: str | None, work: Callable[[Any], Awaitable[T]]) -> T:
    async def opened() -> T:
        uri = connection_string(given, None)
        client = connect(uri, CONNECT_TIMEOUT_S)
        try:
            with first_contact(uri, ANY_RUN, CONNECT_TIMEOUT_S):
                await until_primary(client, uri)
            return await work(client)
        finally:
            await client.close()

    return answer(opened())


def _print(listed: Sequence[SizedRun], now: datetime) -> None:
    rows = table("run", "condition", "age", "heard of", "documents #", "size #", "reason")
    for row in listed:
        age, last_seen = (
            ago(row.created_at, now),
            "never" if row.last_seen is None else f"{ago(row.last_seen, now)} ago",
        )
        cells = (row.condition.value, age, last_seen, f"{row.documents:,}", _size(row.bytes), escape(row.reason))
        rows.add_row(escape(row.name), *cells)
    print_records(console(), rows, "run")


def _size(number: int) -> str:
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
