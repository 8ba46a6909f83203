"""Shared parts of all commands: finding the database, running a command, exit codes, output.

The connection string is `--db_connection_string`, else `$DB_CONNECTION_STRING` (or the file that `$DB_CONNECTION_STRING_FILE`
names), else that of the run's embedded server
(`output/RUN/mongodb/mongod.json`), else that of `tandem mongod` in this folder (`output/mongodb/mongod.json`). A command of no
run in particular takes the embedded server that runs here.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from textwrap import TextWrapper
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shared.configuration.secrets import DATABASE_VARIABLE, configured_secret
from shared.errors import ConfigError, TandemError
from shared.outside_console import OutsideConsole
from shared.outside_text import visible
from shared.processes.interrupt import INTERRUPTED
from shared.processes.mongod import running_server
from shared.store import Store

OK, PROBLEM, USAGE = 0, 1, 2
CONNECT_TIMEOUT_S = 5.0
T = TypeVar("T")

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run and of its database.")]
Connection = Annotated[
    str | None,
    typer.Option(
        "--db_connection_string",
        envvar="DB_CONNECTION_STRING",
        metavar="URI",
        help="MongoDB to use. Default: the embedded server that a launcher started for this run "
        "(output/RUN/mongodb), then that of `tandem mongod` in this folder (output/mongodb).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def console() -> Console:
    """Console for results, on stdout. Created at each use to respect a redirected stdout."""
    return OutsideConsole()


def table(*columns: str, title: str | None = None) -> Table:
    """Columns whose name ends in "#" contain numbers. Narrow terminals wrap ids, never cut them."""
    made = Table(title=title, title_justify="left")
    for name in columns:
        numbers = name.endswith("#") and name != "#"
        made.add_column(name.removesuffix(" #"), justify="right" if numbers else "left", overflow="fold")
    return made


def print_records(out: Console, made: Table, key: str = "record") -> None:
    """Print a table with a column `key`; if too wide, print each id in it on its own line with the other cells below.

    An id wrapped in a narrow column could be neither read nor copied.
    """
    natural = Measurement.get(out, out.options.update_width(10_000), made).maximum
    if natural <= out.width or not made.row_count:
        out.print(made)
        return
    if made.title:
        out.print(made.title, style="table.title")
    names = [str(column.header) for column in made.columns]
    for cells in zip(*(column.cells for column in made.columns), strict=True):
        row = dict(zip(names, map(str, cells), strict=True))
        record = row.pop(key)
        if record:
            out.print(record, style="bold", soft_wrap=True)
        for line in _lines([f"{name} {cell}".strip() for name, cell in row.items() if cell], out.width - 2):
            out.print(f"  {line}", soft_wrap=True)


def _lines(cells: Sequence[str], width: int) -> Iterator[str]:
    """Cells side by side, as many as fit in a line; none is broken."""
    line = ""
    for cell in cells:
        if line and len(line) + 2 + len(cell) > width:
            yield line
            line = ""
        line = f"{line}  {cell}" if line else cell
    yield line


def print_text(out: Console, label: str, value: str, *, style: str = "bold", indent: int = 12) -> None:
    """`label  value` with a hanging indent. Breaks lines between words: an id is never broken, the terminal does that."""
    wrapper = TextWrapper(
        max(20, out.width - indent),
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=False,
        expand_tabs=False,
    )
    lines = [line for paragraph in visible(value).splitlines() for line in (wrapper.wrap(paragraph) or [""])] or [""]
    out.print(Text.assemble((f"{label:<{indent}}", style), lines[0]), soft_wrap=True)
    for line in lines[1:]:
        out.print(Text(" " * indent + line), soft_wrap=True)


def complain(text: str) -> None:
    """Print an error to stderr, unwrapped so that it can be searched and copied."""
    OutsideConsole(stderr=True, soft_wrap=True).print(f"[red]tandem:[/red] {escape(text)}")


def warn(text: str) -> None:
    """Print a warning to stderr."""
    OutsideConsole(stderr=True, soft_wrap=True).print(f"[yellow]tandem:[/yellow] {escape(text)}")


def connection_string(given: str | None, run: str | None) -> str:
    """Find the connection string; `run` None: that of no run in particular. Raises ConfigError if there is none."""
    given = given or configured_secret(DATABASE_VARIABLE)
    if given:
        return given
    folders = (*([Path("output") / run] if run else []), Path("output"))
    candidates = [folder / "mongodb" / "mongod.json" for folder in folders]
    running = _running_here() if run is None else None
    if running:
        candidates = [running]
    for path in candidates:
        if path.is_file():
            return _uri(path)
    raise ConfigError(
        "no database given: pass --db_connection_string mongodb://HOST:PORT, or set DB_CONNECTION_STRING, "
        f"or start one here with `tandem mongod` (also looked for {' and '.join(map(str, candidates))}"
        f"{'' if run else ', and for a server that runs over output/RUN/mongodb'})"
    )


def _running_here() -> Path | None:
    """Of the embedded servers in this folder the one that runs; of several, that of `tandem mongod`. Raises ConfigError."""
    own = Path("output") / "mongodb" / "mongod.json"
    running = [
        path for path in (own, *sorted(Path("output").glob("*/mongodb/mongod.json"))) if running_server(path.parent)
    ]
    if len(running) > 1 and running[0] != own:
        listed = ", ".join(f"{_uri(path)} ({path.parent})" for path in running)
        raise ConfigError(
            f"{len(running)} databases run here: {listed}; expected --db_connection_string with one of them"
        )
    return running[0] if running else None


def _uri(path: Path) -> str:
    return f"mongodb://127.0.0.1:{_port(path)}/?directConnection=true"


def _port(path: Path) -> int:
    try:
        return int(json.loads(path.read_text())["port"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(f'{path}: expected {{"port": NUMBER}}; start the server again, or remove the file') from exc


def with_store(
    given: str | None,
    run: str,
    work: Callable[[Store], Awaitable[T]],
    *,
    must_exist: bool = True,
    read_only: bool = False,
) -> T:
    """Run `work` on the run's store; a TandemError becomes a message and an exit code. `read_only`: a user without any other
    right may do it. `must_exist` False: `work` makes a missing run by `begin()`, before its first write."""

    async def opened() -> T:
        uri = connection_string(given, run)
        async with Store.open(
            uri, run, timeout_s=CONNECT_TIMEOUT_S, must_exist=must_exist, read_only=read_only, create=must_exist
        ) as store:
            return await work(store)

    return answer(opened())


def answer(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`. ConfigError exits with 2, other TandemErrors with 1."""
    try:
        return asyncio.run(work)
    except ConfigError as exc:
        _end(str(exc), USAGE, exc)
    except (TandemError, PyMongoError) as exc:
        _end(str(exc), PROBLEM, exc)
    except KeyboardInterrupt as exc:
        _end("interrupted", INTERRUPTED, exc)


def _end(text: str, code: int, cause: BaseException) -> NoReturn:
    complain(text)
    raise typer.Exit(code) from cause


def ago(then: datetime | None, now: datetime) -> str:
    """Time from `then` to `now`, both by the server's clock."""
    if then is None:
        return "never"
    seconds = max(0.0, (now - then).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
