"""Every verb of the store in runs of several sizes, under MongoDB's profiler: keys and documents examined, and milliseconds.

    python -m tests.shared.grown 1000 100000 --turns 10      # groups that were played; turns of each record

What services repeat is asked in a run of that size (`tests/shared/looks.py`). The other verbs run in a small run, in a database
where another policy has come that far (`tests/shared/test_verbs_on_a_grown_run.py` holds that none reads its documents). The
rows that grow the most come first. A large size needs disk and a mongod with more cache than the one that is started here: give
its address.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from shared.processes.interrupt import run_command
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.episodes import whole_run
from tests.shared.late_write_rows import ROWS
from tests.shared.looks import COUNTS, GROWING, OFTEN, Examined, examine, fill, of_another_policy
from tests.shared.test_verbs_on_a_grown_run import READS

NOT_OF_OTHER = {
    "$or": [{"_id": {"$lt": "other:"}}, {"_id": {"$gte": "other;"}}, {"_id": {"$not": {"$type": "string"}}}]
}
Row = dict[int, Examined]  # by size


async def as_it_is(work: Awaitable[Any]) -> Any:
    return await work


async def measured(connection_string: str, size: int, turns: int, rows: dict[str, Row]) -> None:
    async with Store.open(connection_string, f"grown-{size}") as store:
        await _filled(store, size, turns)
        for name, look in (OFTEN | COUNTS | GROWING).items():
            rows.setdefault(name, {})[size] = await examine(connection_string, store, look)
        await store.client.drop_database(store.run)
    async with Store.open(connection_string, f"other-policy-{size}") as store:
        await _filled(store, size, turns, other_policy=True)
        for name, row in ROWS.items():
            await _emptied(store)
            rows.setdefault(name, {})[size] = await examine(
                connection_string,
                store,
                lambda store, row=row: row(store, as_it_is),  # type: ignore[misc]  # bound now
            )
        await _emptied(store)
        await whole_run(store)
        for name, look in READS.items():
            rows.setdefault(name, {})[size] = await examine(connection_string, store, look)
        await store.client.drop_database(store.run)


async def _filled(store: Store, size: int, turns: int, *, other_policy: bool = False) -> None:
    began = time.monotonic()
    await fill(store, size, turns=turns, **({"change": of_another_policy} if other_policy else {}))
    print(f"filled {store.run}: {time.monotonic() - began:.0f} s", flush=True)


async def _emptied(store: Store) -> None:
    """Without all but the other policy's episodes: a row begins in an empty run."""
    for name in await store.database.list_collection_names():
        if name not in ("signals", "system.profile"):
            await store.database[name].delete_many(NOT_OF_OTHER)
    await store.runs.ensure()


def table(rows: dict[str, Row], sizes: list[int]) -> Iterator[str]:
    """Markdown, the rows that grow most first."""

    def growth(row: Row) -> float:
        first, last = row[sizes[0]], row[sizes[-1]]
        return (last.keys + last.documents + 1) / (first.keys + first.documents + 1)

    yield "| verb | " + " | ".join(f"{size:,} groups: keys, documents, ms" for size in sizes) + " |"
    yield "|---" * (1 + len(sizes)) + "|"
    for name, row in sorted(rows.items(), key=lambda one: -growth(one[1])):
        figures = (f"{row[n].keys:,}, {row[n].documents:,}, {row[n].milliseconds}" for n in sizes)
        yield f"| {name.strip()} | " + " | ".join(figures) + " |"


@contextmanager
def _server(given: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, nullcontext() if given else Mongod(Path(folder)) as own:
        yield given or own.connection_string  # type: ignore[union-attr]  # one of both


async def _main(sizes: list[int], turns: int, connection_string: str) -> None:
    rows: dict[str, Row] = {}
    for size in sizes:
        await measured(connection_string, size, turns, rows)
    print(*table(rows, sizes), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="How much every verb reads, by the size of the run.")
    parser.add_argument("sizes", nargs="*", type=int, default=[1_000, 10_000], help="finished groups")
    parser.add_argument("--turns", type=int, default=10, help="of each record")
    parser.add_argument("--db_connection_string", help="of a server for this alone; default: one is started")
    arguments = parser.parse_args()
    with _server(arguments.db_connection_string) as connection_string:
        asyncio.run(_main(arguments.sizes, arguments.turns, connection_string))


if __name__ == "__main__":
    run_command(main)
