"""SQL over an SQLite file: `python -m sampler.mcp_docker.tools.sql DATABASE [--copy]`.

The file is only read; with `--copy`, each session works on a copy of its own in its folder. Time, rows and sizes are bounded.
"""

import shutil
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sampler.mcp_docker.tools.serving import (
    BundledServer,
    BundledTool,
    ToolArguments,
    ToolRefusal,
    argument,
    run,
    server_of,
)

MAX_CELL_CHARS = 2_000
_STEPS = 10_000  # of SQLite's virtual machine, between two looks at the clock
_MAX_VALUE_BYTES = 16 * 1024 * 1024
_COPY_NAME = "database.sqlite"
_ATTACH, _DETACH, _PRAGMA = sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}


class QueryArguments(ToolArguments):
    statement: str = argument(description="one SQL statement, in SQLite's dialect", max_length=100_000)
    rows: int = argument(100, description="at most so many rows", ge=1, le=10_000)
    timeout_s: float = argument(30.0, description="after which the statement is ended", gt=0, le=600)


class DatabaseFile:
    """Opened for each call: calls run in threads."""

    def __init__(self, path: Path, writable: bool) -> None:
        if not path.is_file():
            raise SystemExit(f"{path}: is no file; expected an SQLite database")
        self._writable = writable
        if writable:
            copy = Path(_COPY_NAME)
            if not copy.exists():  # a restarted server goes on with it
                shutil.copyfile(path, copy)
            path = copy
        self._uri = f"{path.resolve().as_uri()}?mode={'rw' if writable else 'ro'}"

    def query(self, arguments: QueryArguments) -> str:
        end = time.monotonic() + arguments.timeout_s
        connection = self._connected(end)
        try:
            cursor = connection.execute(arguments.statement)
            rows = cursor.fetchmany(arguments.rows + 1)
            connection.commit()
        except sqlite3.OperationalError as exc:
            if "interrupted" in str(exc):
                raise ToolRefusal(f"the statement was ended after {arguments.timeout_s:g} s") from exc
            raise ToolRefusal(str(exc)) from exc
        except (sqlite3.Error, sqlite3.Warning, OverflowError, MemoryError) as exc:
            raise ToolRefusal(str(exc) or type(exc).__name__) from exc
        finally:
            connection.close()
        if cursor.description is None:
            return f"[{max(cursor.rowcount, 0)} rows changed]"
        return _table([column[0] for column in cursor.description], rows, arguments.rows)

    def tables(self, arguments: ToolArguments) -> str:
        statement = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name"
        connection = self._connected(time.monotonic() + 30.0)
        try:
            return "\n".join(sql for (sql,) in connection.execute(statement)) or "[no tables]"
        except sqlite3.Error as exc:
            raise ToolRefusal(str(exc)) from exc
        finally:
            connection.close()

    def _connected(self, end: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self._uri, uri=True)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.set_progress_handler(lambda: int(time.monotonic() > end), _STEPS)
        connection.set_authorizer(_is_allowed)
        return connection


def _is_allowed(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """No other files, no settings: also `VACUUM INTO` attaches a file."""
    if action in (_ATTACH, _DETACH) or (action == _PRAGMA and first not in _PRAGMAS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _table(columns: list[str], rows: list[tuple[object, ...]], most: int) -> str:
    lines = [" | ".join(columns), *(" | ".join(map(_cell, row)) for row in rows[:most])]
    lines.append(f"[more than {most} rows]" if len(rows) > most else f"[{len(rows)} rows]")
    return "\n".join(lines)


def _cell(value: object) -> str:
    text = f"[{len(value)} bytes]" if isinstance(value, bytes) else "NULL" if value is None else str(value)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]}…"


def tool_server(arguments: Sequence[str]) -> BundledServer:
    paths = [argument for argument in arguments if argument != "--copy"]
    if len(paths) != 1:
        raise SystemExit(__doc__)
    database = DatabaseFile(Path(paths[0]), writable="--copy" in arguments)
    return server_of(
        "sql",
        [
            BundledTool("query", "Runs an SQL statement and returns its rows.", QueryArguments, database.query),
            BundledTool("tables", "The statements that made the tables.", ToolArguments, database.tables),
        ],
    )


if __name__ == "__main__":
    run(tool_server(sys.argv[1:]))
