"""A session's SQLite database, in memory, with bounds that a statement cannot change.

time        the progress handler, and SQLite's own limits of lengths for what it does in one step; a function that takes the
            product of its lengths, or as long as a number in it says, in one step is bounded here, or denied
memory      pages of the database, and a heap limit of the worker; sessions whose databases fill half of it leave no room.
            It also ends a query of queries of queries … that doubles with each, before SQLite 3.41 looks at the clock
the rest    no file, extension or setting: the authorizer denies ATTACH (also of VACUUM INTO) and PRAGMA but for the schema
"""

import functools
import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sampler.environments.adapters.database_results import MAX_SHOWN_ROWS, MAX_STATE_ROWS, StatementRefused, shown_rows
from sampler.environments.adapters.database_tasks import Table
from sampler.environments.environment import NoRoom, TaskRefused

MAX_PAGES = 512  # of 4 KiB each, of the tables and of the temporary ones
HEAP_BYTES = 128 << 20  # of all SQLite databases in the worker, with what statements need for a moment
STATE_S = 5.0
_STEPS = 50  # of SQLite's virtual machine, between two looks at the clock: instr() of long texts takes 0.1 s in one
MAX_TRIM_CHARS = 100  # which trim() looks for at each character
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,  # instr() of two long texts takes the product of their lengths, in one step
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_DENIED = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_CREATE_VTABLE)
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
_FUNCTIONS = {
    *("load_extension", "fts3_tokenizer"),  # the second tells, and takes, addresses of the process
    *("printf", "format"),  # printf('%.*c', 1000000000, 'x') counts so far, for 12 s, before it is found too long
}
_TOLD = {
    "interrupted": "it took more than {within_s:.3g} s",
    "user-defined function": f"trim() looks for more than {MAX_TRIM_CHARS} characters",  # no other one is defined
}
_TRIMS = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}


class SqliteDatabase:
    dialect = "SQLite"
    _bytes: ClassVar[dict[int, int]] = {}  # of each open database of this worker
    _numbers: ClassVar["itertools.count[int]"] = itertools.count()

    def __init__(self, tables: Sequence[Table]) -> None:
        """Raises NoRoom, and TaskRefused for tables that SQLite does not take."""
        if sum(self._bytes.values()) > HEAP_BYTES // 2:
            raise NoRoom("the databases of this worker's sessions have no memory left")
        self._number = next(self._numbers)
        self._until = float("inf")
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.text_factory = lambda text: text.decode("utf-8", "replace")  # a statement can make what is no text
        try:
            self._fill(tables)
        except (sqlite3.Error, OverflowError, ValueError) as exc:
            self.close()
            raise TaskRefused(f"the task's tables cannot be made: {exc}") from exc
        self._bound()
        self._note_size()

    def execute(self, statement: str, within_s: float) -> str:
        self._until = time.monotonic() + within_s
        cursor = self._db.cursor()
        try:
            cursor.execute(statement)
            if cursor.description is None:
                return f"{max(cursor.rowcount, 0)} rows changed"
            rows = cursor.fetchmany(MAX_SHOWN_ROWS + 1)
            return shown_rows([str(column[0]) for column in cursor.description], rows)
        except sqlite3.OperationalError as exc:
            explained = [text.format(within_s=within_s) for of, text in _TOLD.items() if of in str(exc)]
            raise StatementRefused(explained[0] if explained else str(exc)) from exc
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError, MemoryError) as exc:
            raise StatementRefused(str(exc) or "it needs too much memory") from exc
        finally:
            cursor.close()
            self._note_size()

    def committed(self) -> list[Table]:
        self._until = time.monotonic() + STATE_S
        try:
            if self._db.in_transaction:
                self._db.rollback()
            names = [
                str(name)
                for (name,) in self._db.execute(
                    "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
                )
            ]
            return [self._table(name) for name in names]
        except (sqlite3.Error, MemoryError, ValueError) as exc:
            raise StatementRefused(str(exc) or "it needs too much memory") from exc

    def close(self) -> None:
        self._bytes.pop(self._number, None)
        self._db.close()

    def _fill(self, tables: Sequence[Table]) -> None:
        self._db.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")
        self._db.execute("PRAGMA temp_store = MEMORY")
        for table in tables:
            columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind in table.columns)
            self._db.execute(f"CREATE TABLE {_quoted(table.name)} ({columns})")
            places = ", ".join("?" * len(table.columns))
            self._db.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({places})", table.rows)

    def _bound(self) -> None:
        for schema in ("main", "temp"):
            self._db.execute(f"PRAGMA {schema}.max_page_count = {MAX_PAGES}")
        for limit, most in _LIMITS.items():
            self._db.setlimit(limit, most)
        for name, trim in _TRIMS.items():
            self._db.create_function(name, 2, functools.partial(_trimmed, trim), deterministic=True)
        self._db.set_progress_handler(lambda: int(time.monotonic() > self._until), _STEPS)
        self._db.set_authorizer(_is_allowed)

    def _note_size(self) -> None:
        self._until = float("inf")
        self._db.set_authorizer(None)
        try:
            pages = [self._db.execute(f"PRAGMA {schema}.page_count").fetchone()[0] for schema in ("main", "temp")]
            self._bytes[self._number] = 4096 * sum(pages)
        finally:
            self._db.set_authorizer(_is_allowed)

    def _table(self, name: str) -> Table:
        cursor = self._db.execute(f"SELECT * FROM main.{_quoted(name)}")
        rows = cursor.fetchmany(MAX_STATE_ROWS + 1)
        if len(rows) > MAX_STATE_ROWS:
            raise StatementRefused(f"table {name} has more than {MAX_STATE_ROWS} rows")
        return Table(name, [(str(column[0]), "") for column in cursor.description], [list(row) for row in rows])


def _trimmed(trim: Callable[[str, str], str], value: Any, chars: Any) -> str | None:
    """Raises ValueError, which refuses the statement."""
    if value is None or chars is None:
        return None
    text, looked_for = (
        one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in (value, chars)
    )
    if len(looked_for) > MAX_TRIM_CHARS:
        raise ValueError(len(looked_for))
    return trim(text, looked_for) if looked_for else text


def _is_allowed(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in _DENIED or (action == sqlite3.SQLITE_PRAGMA and first not in _PRAGMAS):
        return sqlite3.SQLITE_DENY
    denied = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
