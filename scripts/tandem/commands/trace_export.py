"""`tandem trace export`: send episodes as OpenTelemetry spans to a receiver of OTLP over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import unquote

import typer

from shared.errors import ConfigError
from shared.store import Store
from shared.store.settled import SettledPlace, attempts_at, last_step, records_of_step, settled_after, trained_steps
from tandem.commands.connect import PROBLEM, Connection, RunName, console, warn, with_store
from tandem.traces.otlp import Exporter
from tandem.traces.spans import Episode, spans_of

HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
GROUPS_AT_ONCE = 10
RECORDS_AT_ONCE = 50
POLL_S = 2.0
LOOK_BACK = timedelta(seconds=10)  # a group may be seen after one that was settled later

EXAMPLES = """Examples:

`tandem trace export demo --otlp http://localhost:6006`  every settled episode, to Arize Phoenix

`tandem trace export demo --otlp http://localhost:5000 --header x-mlflow-experiment-id=0`  to MLflow 3.6 or newer

`tandem trace export demo --otlp http://localhost:4318 --step 12`  what the 12th step trained, to an OpenTelemetry Collector

`tandem trace export demo --otlp http://localhost:4318 --follow`  every group as it is settled, until Ctrl-C
"""


def export(
    run: RunName,
    otlp: Annotated[
        str,
        typer.Option("--otlp", metavar="URL", help="Receiver of OTLP over HTTP; without a path /v1/traces is added."),
    ],
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="Only what this step trained; with --follow, also later ones.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    since: Annotated[
        datetime | None,
        typer.Option("--since", help="Only groups settled from this time on (UTC), as the last export told."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help=f"A header of each request; secrets: ${HEADERS_VARIABLE}."),
    ] = None,
    db_connection_string: Connection = None,
) -> None:
    """Send episodes as OpenTelemetry spans: the attempt, its requests and its tool calls, by the GenAI conventions.

    Ids are derived from the documents, so a repeated export sends the same spans. Reads documents alone: a run does not notice.
    Exit code 1 if the receiver refused spans, or a record is left out because OTLP has no such value (a time before 1970).
    """

    async def work(store: Store) -> int:
        exporter = Exporter(otlp, given_headers(header or []))
        ids = _by_group(store, since, follow)
        if step is not None:
            ids = _steps_from(store, step) if follow else _by_step(store, step)
        episodes = 0
        try:
            async for records in ids:
                episodes += await _send(store, exporter, records)
        finally:
            exporter.stop()
            sent = exporter.sent
            spans = f"{sent.spans - sent.rejected} spans in {sent.requests} requests"
            summary = f"{episodes - len(exporter.left_out)} episodes, {spans}"
            console().print(summary, soft_wrap=True, markup=False)
            if sent.rejected or sent.message:
                warn(f"the receiver rejected {sent.rejected} spans: {sent.message or 'without a reason'}")
        return exporter.sent.rejected + len(exporter.left_out)

    if with_store(db_connection_string, run, work, read_only=True):
        raise typer.Exit(PROBLEM)


def given_headers(given: list[str]) -> Mapping[str, str]:
    """Of the flags, and of the variable that OpenTelemetry names (`a=1,b=2`, values URL-encoded)."""
    pairs = [one.partition("=") for one in os.environ.get(HEADERS_VARIABLE, "").split(",") if one.strip()]
    headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    for one in given:
        name, is_pair, value = one.partition("=")
        if not is_pair or ":" in name:  # as curl takes it; what follows may be a key
            raise ConfigError(f"--header {name.partition(':')[0]!r}: expected NAME=VALUE")
        headers[name.strip()] = value.strip()
    for name, value in headers.items():
        if (
            not name
            or not name.isascii()
            or not (value.isascii() and value.isprintable())
            or any(c in name for c in " :\r\n")
        ):
            raise ConfigError(f"header {name!r}: expected a name without spaces, and a value of ASCII on one line")
    return headers


async def _by_group(store: Store, since: datetime | None, follow: bool) -> AsyncIterator[list[str]]:
    """Records of settled groups, all attempts, in the order of settlement."""
    begin = place = (
        SettledPlace()
        if since is None
        else SettledPlace(since.astimezone(UTC).replace(tzinfo=None) if since.tzinfo else since)
    )
    seen: dict[str, datetime] = {}
    try:
        while True:
            page = await settled_after(store, place, GROUPS_AT_ONCE)
            new = [group.task for group in page if group.task not in seen]
            if new:
                yield [record.id for record in await attempts_at(store, new)]
            seen |= {group.task: group.settled_at for group in page}
            if page:
                place = page[-1]
            elif follow:
                await asyncio.sleep(POLL_S)  # until more groups are settled
                seen = {task: at for task, at in seen.items() if at >= place.settled_at - LOOK_BACK}
                place = SettledPlace(max(place.settled_at - LOOK_BACK, begin.settled_at))
            else:
                break
    finally:  # also at Ctrl-C
        if seen:
            hint = f"the last group was settled at {max(seen.values()).isoformat()}; later ones: `--since` this time"
            console().print(hint, soft_wrap=True, markup=False)


async def _by_step(store: Store, step: int) -> AsyncIterator[list[str]]:
    records = await records_of_step(store, step)
    if not records:
        raise ConfigError(f"run {store.run}: step {step} used no record; see `tandem status {store.run}`")
    yield records


async def _steps_from(store: Store, first: int) -> AsyncIterator[list[str]]:
    """Each policy's steps as its trainer takes them, again those that a resume takes again."""
    following: dict[str, tuple[int, int]] = {}  # by policy: trainer starts that were seen, and the next step
    while True:
        for policy, starts in (await store.runs.read()).starts.items():
            seen, step = following.get(policy, (len(starts), first))
            step = max(first, min([step, *(began_from + 1 for began_from in starts[seen:])]))
            for taken in range(step, await last_step(store, policy, starts) + 1):
                yield await records_of_step(store, taken, policy)
                step = taken + 1
            following[policy] = len(starts), step
        await asyncio.sleep(POLL_S)  # until a trainer takes a step


async def _send(store: Store, exporter: Exporter, records: list[str]) -> int:
    for first in range(0, len(records), RECORDS_AT_ONCE):
        episodes = await _episodes(store, records[first : first + RECORDS_AT_ONCE])
        num_omitted = len(exporter.left_out)
        spans = [(episode.record.id, spans_of(store.run, episode)) for episode in episodes]
        await asyncio.to_thread(exporter.send_episodes, store.run, spans)
        for record, why in list(exporter.left_out.items())[num_omitted:]:
            warn(f"record {record} is left out: {why}")
    return len(records)


async def _episodes(store: Store, ids: list[str]) -> list[Episode]:
    records = await store.records.get_many(ids)
    dispatches, steps = await store.records.dispatches_of(ids), await trained_steps(store, ids)
    tasks = {task: await store.tasks.get(task) for task in {record.task for record in records.values()}}
    hashes = {dispatch.tools_hash for of_record in dispatches.values() for dispatch in of_record if dispatch.tools_hash}
    tools = await store.tool_schemas.get_many(sorted(hashes))
    return [
        Episode(record, tasks[record.task], dispatches[record.id], steps.get(record.id, []), tools)
        for record in records.values()
    ]
