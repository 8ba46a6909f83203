"""A session's database on the worker's MariaDB server, with a user who may do nothing outside of it.

A statement that takes too long is killed by the server's root, also where the session has set other limits; one that does not
end by that loses its connection. Rows beyond those that are shown are not read.
"""

import contextlib
import itertools
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

from sampler.environments.adapters.database_results import MAX_SHOWN_ROWS, MAX_STATE_ROWS, StatementRefused, shown_rows
from sampler.environments.adapters.database_tasks import Table
from sampler.environments.adapters.mariadb_server import MariadbServer, after, server
from sampler.environments.environment import TaskRefused

MAX_BYTES = 64 << 20  # of a session's files, of which an empty table has 64 KiB
MORE_S = 2.0  # after its statement was killed, for the server to say so
RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE VIEW, CREATE TEMPORARY TABLES"
_NO_ACCESS = 1045  # a model that breaks its session so is scored by what it has done
_LOST = (2006, 2013, 2055)  # of PyMySQL: the connection is gone


class MariadbDatabase:
    dialect = "MariaDB"
    _numbers: ClassVar["itertools.count[int]"] = itertools.count()

    def __init__(self, tables: Sequence[Table]) -> None:
        """Raises TaskRefused for tables that MariaDB does not take."""
        self._server: MariadbServer = server()
        self._name = f"w{next(self._numbers)}"
        self._password = secrets.token_hex(8)
        self._db: Any = None
        try:
            self._fill(tables)
        except RuntimeError as exc:
            self.close()
            raise TaskRefused(f"the task's tables cannot be made: {exc}") from exc

    def execute(self, statement: str, within_s: float) -> str:
        import pymysql

        if self._server.size_of(self._name) > MAX_BYTES:
            raise StatementRefused(f"the database has more than {MAX_BYTES >> 20} MiB, and takes no more statements")
        connection = self._connection(within_s)
        killing = after(within_s, lambda: self._kill(connection.thread_id()))
        try:
            with contextlib.closing(pymysql.cursors.SSCursor(connection)) as cursor:
                cursor.execute(statement)
                if cursor.description is None:
                    return f"{max(cursor.rowcount, 0)} rows changed"
                rows = cursor.fetchmany(MAX_SHOWN_ROWS + 1)
                if len(rows) > MAX_SHOWN_ROWS:
                    self._kill(connection.thread_id())  # what is left is not read
                    with contextlib.suppress(pymysql.Error):
                        cursor.close()
                return shown_rows([str(column[0]) for column in cursor.description], rows)
        except (pymysql.Error, ValueError, OverflowError) as exc:
            self._drop_lost(exc)
            raise StatementRefused(_explained(exc, within_s)) from exc
        finally:
            killing.cancel()

    def committed(self) -> list[Table]:
        """Seen from outside of the session, whose open transaction does not count."""
        names = self._server.execute(
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = '{self._name}' AND table_type = 'BASE TABLE'"
        )
        return [self._table(str(name)) for (name,) in names]

    def close(self) -> None:
        import pymysql

        with contextlib.suppress(pymysql.Error, AttributeError):
            self._db.close()
        with contextlib.suppress(RuntimeError):  # the server is gone, and all its databases
            self._server.execute(f"DROP USER IF EXISTS '{self._name}'@localhost")
            self._server.drop(self._name)

    def _fill(self, tables: Sequence[Table]) -> None:
        ask = self._server.execute
        ask(f"CREATE DATABASE `{self._name}` CHARACTER SET utf8mb4")
        for table in tables:
            columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind in table.columns)
            where = f"`{self._name}`.{_quoted(table.name)}"
            ask(f"CREATE TABLE {where} ({columns})")
            if table.rows:
                rows = ", ".join("(" + ", ".join(map(_literal, row)) + ")" for row in table.rows)
                ask(f"INSERT INTO {where} VALUES {rows}")
        ask(f"CREATE USER '{self._name}'@localhost IDENTIFIED BY '{self._password}' WITH MAX_USER_CONNECTIONS 4")
        ask(f"GRANT {RIGHTS} ON `{self._name}`.* TO '{self._name}'@localhost")

    def _connection(self, within_s: float) -> Any:
        import pymysql

        if self._db is None:
            try:
                self._db = self._server.connect(self._name, self._password, self._name)
            except pymysql.Error as exc:
                if exc.args[:1] != (_NO_ACCESS,):
                    raise
                raise StatementRefused("the session has changed its password, and cannot connect again") from exc
        self._db._read_timeout = within_s + MORE_S  # PyMySQL reads it at each packet
        return self._db

    def _kill(self, thread: int) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile
            self._server.execute(f"KILL QUERY {thread}")

    def _drop_lost(self, exc: Exception) -> None:
        """The next statement has a new connection, if the server is there; else the session fails."""
        if not exc.args or exc.args[0] not in _LOST:
            return
        thread = self._db.thread_id()
        with contextlib.suppress(Exception):  # a connection that is lost may fail in any way as it is closed
            self._db.close()
        self._db = None
        if self._server.has_ended():
            raise RuntimeError("the MariaDB server has ended")
        with contextlib.suppress(RuntimeError):
            self._server.execute(f"KILL {thread}")

    def _table(self, name: str) -> Table:
        where = f"`{self._name}`.{_quoted(name)}"
        columns = self._server.execute(f"SHOW COLUMNS FROM {where}")
        rows = self._server.execute(
            f"SET STATEMENT max_statement_time = 5 FOR SELECT * FROM {where} LIMIT {MAX_STATE_ROWS + 1}"
        )
        if len(rows) > MAX_STATE_ROWS:
            raise StatementRefused(f"table {name} has more than {MAX_STATE_ROWS} rows")
        return Table(name, [(str(column[0]), "") for column in columns], [list(row) for row in rows])


def _explained(exc: Exception, within_s: float) -> str:
    code = exc.args[0] if exc.args else None
    if code in (1317, 1969, *_LOST):  # interrupted, beyond its time
        return f"it took more than {within_s:.3g} s"
    return str(exc.args[1] if isinstance(code, int) and len(exc.args) > 1 else exc)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: Any) -> str:
    from pymysql.converters import escape_string

    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | float) else f"'{escape_string(str(value))}'"
