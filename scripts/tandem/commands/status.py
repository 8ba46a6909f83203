"""`tandem status`: the current state of a run."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from shared.store import Store
from tandem.commands.connect import AsJson, Connection, RunName, console, with_store
from tandem.commands.run_status import read_status
from tandem.commands.status_tables import lines_and_tables, print_once

EXAMPLES = """Examples:

`tandem status demo`  once

`tandem status demo --watch`  until Ctrl-C, every two seconds

`tandem status demo --all`  includes workers that have stopped or died

`tandem status demo --json | jq .tasks`  for programs
"""


def status(
    run: RunName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List all workers, including stopped ones.")] = False,
    interval_s: Annotated[float, typer.Option("--interval_s", min=0.1, help="Refresh period of --watch.")] = 2.0,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Show tasks, slots, records, training data, engines, workers, weights and rates of a run.

    Times are by the database's clock. Rates are over the last minute. *Staleness* is how many optimizer steps the weights
    that sampled a record are behind the newest.
    """

    async def work(store: Store) -> None:
        if as_json:
            while True:
                typer.echo(json.dumps(asdict(await read_status(store)), ensure_ascii=False, default=str))
                if not watch:
                    return
                await asyncio.sleep(interval_s)
        if not watch:
            print_once(console(), lines_and_tables(await read_status(store), every))
            return
        with Live(
            Group(*lines_and_tables(await read_status(store), every)), console=console(), auto_refresh=False
        ) as live:
            while True:
                await asyncio.sleep(interval_s)
                live.update(Group(*lines_and_tables(await read_status(store), every)), refresh=True)

    with_store(db_connection_string, run, work, read_only=True)
