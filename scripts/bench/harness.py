"""The one way in which a benchmark runs: its command line, a folder for what it writes, tables in the terminal, rows in a file.

A benchmark is a function that makes named tables of rows from its options. Each has `--quick`, which `tests/test_benchmarks.py`
runs, `--json` and `--keep`.
"""

import argparse
import asyncio
import inspect
import json
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared.errors import DataError
from shared.files.written_file import write_text_whole
from shared.processes.interrupt import run_command

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Mapping[str, Any]]]  # rows by the table's name
Options = argparse.Namespace


def command_line(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_benchmark(
    parser: argparse.ArgumentParser,
    measure: Callable[[Options], Tables | Awaitable[Tables]],
    *,
    decimals: int = 2,
    width: int = 160,
    verdict: Callable[[Tables, Options], str | None] = lambda *_: None,
    **quick: object,
) -> None:
    """The whole program. With `--quick` the defaults are `quick`, the smallest sizes; an option that is given counts.

    `measure` finds a folder in `options.folder`, which is removed afterwards without `--keep`. SIGTERM raises SystemExit in it,
    so that it ends what it started. `verdict`: what is wrong with the tables, once they are shown: exit status 1.
    """
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs: no measurement")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--keep", type=Path, help="folder for databases and logs, which stay there")
    if parser.parse_args().quick:
        parser.set_defaults(**quick)
    options = parser.parse_args()

    def main() -> None:
        signal.signal(signal.SIGTERM, _leave)
        with tempfile.TemporaryDirectory(prefix="bench_") as temporary:
            options.folder = (options.keep or Path(temporary)).resolve()
            options.folder.mkdir(parents=True, exist_ok=True)
            tables = measure(options)
            if inspect.isawaitable(tables):
                tables = asyncio.run(_awaited(tables))
        for name, rows in tables.items():
            show(rows, name, decimals=decimals, width=width)
        if options.json is not None:
            write_json(options.json, tables)
        if wrong := verdict(tables, options):
            sys.exit(wrong)

    run_command(main)


def _leave(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


async def _awaited(tables: Awaitable[Tables]) -> Tables:
    return await tables


def show(rows: Sequence[Mapping[str, Any]], title: str, *, decimals: int, width: int) -> None:
    """Rows of the same columns; floats get so many decimals."""
    if not rows:
        return
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:,.{decimals}f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=width, highlight=False).print(table)


def write_json(path: Path, tables: Tables) -> None:
    """Exits with 1 and a message where it cannot be written."""
    try:
        write_text_whole(path, json.dumps(tables, indent=1) + "\n", public=True)
    except DataError as exc:
        sys.exit(str(exc))
