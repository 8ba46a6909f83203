"""`tandem health`: whether a process of this machine or container works, by its heartbeat in the database. For health checks."""

import socket
from typing import Annotated, Literal

import typer

from shared.documents.run import Worker
from shared.store import Store
from tandem.commands.connect import PROBLEM, Connection, RunName, complain, with_store

EXAMPLE = "Example:  `tandem health demo sampler`"
Kind = Literal["sampler", "gateway", "keeper", "trainer"]


def health(
    run: RunName,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="sampler, gateway, keeper or trainer.")],
    host: Annotated[str | None, typer.Option("--host", help="Its host's name. Default: this machine's.")] = None,
    db_connection_string: Connection = None,
) -> None:
    """Exit with 0 if a process of this kind on this host has a current heartbeat, else with 1."""
    where = host or socket.gethostname()

    async def work(store: Store) -> list[Worker]:
        return [worker for worker in await store.workers.live() if (worker.kind, worker.host) == (kind, where)]

    workers = with_store(db_connection_string, run, work, read_only=True)
    if not workers:
        complain(f"run {run}: no {kind} on host {where} has a current heartbeat")
        raise typer.Exit(PROBLEM)
    for worker in workers:
        typer.echo(f"{worker.id}: {worker.doing}")
