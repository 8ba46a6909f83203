"""What every measurement begins and ends with: its command line; a table in the terminal, and its numbers in a file."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shared.errors import DataError
from shared.files.written_file import write_text_whole

Parts = Mapping[str, Sequence[Mapping[str, Any]]]  # rows of a table, by its name


def add_computing(parser: argparse.ArgumentParser) -> None:
    """Where it computes, with how many threads, and `--json`."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more only on an idle machine")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, help="also write the results to this file")


def parsed(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """The command line. With `--quick` the defaults are `quick`, the smallest sizes; an option that is given counts."""
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs: no measurement")
    if parser.parse_args().quick:
        parser.set_defaults(**quick)
    return parser.parse_args()


def run_parts(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], Coroutine[Any, Any, Parts]],
    width: int,
    **quick: object,
) -> None:
    """A benchmark of services in parts: its tables, and its file. What it started is ended at SIGTERM too."""
    add_json(parser)
    parser.add_argument("--keep", type=Path, help="folder for database and logs, which are kept then")
    options = parsed(parser, **quick)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parts = asyncio.run(run(options))
    for part, rows in parts.items():
        show(rows, part, decimals=2, width=width)
    write_json(options.json, parts)


def show(rows: Sequence[Mapping[str, Any]], title: str | None = None, *, decimals: int = 1, width: int = 120) -> None:
    """Rows of the same columns; floats get so many decimals."""
    if not rows:
        return
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:,.{decimals}f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=width, highlight=False).print(table)


def write_json(path: Path | None, results: Any) -> None:
    """Where a file was asked for. Exits with 1 and a message where it cannot be written."""
    if path is None:
        return
    try:
        write_text_whole(path, json.dumps(results, indent=1, default=_plain) + "\n", public=True)
    except DataError as exc:
        sys.exit(str(exc))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
