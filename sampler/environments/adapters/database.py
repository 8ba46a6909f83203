"""Questions about a database, and changes to it, by SQL: `database:train`, `database:heldout`; `mariadb:…` on a MariaDB.

    index         the seed of the task; held-out tasks are of tables that no training task has
    custom_task   {"form": "text", "max_turns": 12}, or a task of your own:
                  {"question": "…", "tables": [{"name": "t", "columns": [["id", "INTEGER"]], "rows": [[1]]}], and one of
                   "answer": ["…"], "after": [tables], "statement": "UPDATE …"}

As AgentBench's DBBench: statements are executed turn by turn on a database of the session's own. At the answer, its values are
compared; of a task that changes the tables, the state that was committed, by hash. A statement is bounded in time, memory and
what is shown of its rows.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from sampler.environments.adapters.acting import (
    FORM_FIELDS,
    ActingEnvironment,
    ToolOfWorld,
    count_of,
    is_own,
    same_values,
)
from sampler.environments.adapters.database_results import StatementRefused
from sampler.environments.adapters.database_tasks import SPLITS, Table, task_of
from sampler.environments.environment import Index, Step, TaskRefused, seed_of
from sampler.environments.task_fields import OBJECTS, TEXT, VALUES, fields_of

STATEMENT_S = 5.0
MAX_STATEMENT_CHARS = 20_000
ASKED = ("answer", "after", "statement")


class Database(Protocol):
    """One session's. `dialect`: for the model."""

    dialect: str

    def execute(self, statement: str, within_s: float) -> str:
        """Its rows as text. Raises StatementRefused."""
        ...

    def committed(self) -> list[Table]:
        """All tables of the session; raises StatementRefused where they are too large."""
        ...

    def close(self) -> None: ...


class DatabaseEnvironment(ActingEnvironment):
    tools: ClassVar[tuple[ToolOfWorld, ...]] = (
        ToolOfWorld("execute_sql", "query", "sql", "Executes one SQL statement, and returns its rows."),
        ToolOfWorld(
            "commit_final_answer",
            "answers",
            "answer",
            "Ends the task: the values of the answer, or an empty one after a change.",
            ends=True,
            is_list=True,
        ),
    )

    def database(self, tables: Sequence[Table]) -> Database:
        from sampler.environments.adapters.sqlite_database import SqliteDatabase

        return SqliteDatabase(tables)

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        task = fields_of(
            task, **FORM_FIELDS, question=TEXT, tables=OBJECTS, answer=VALUES, after=OBJECTS, statement=TEXT
        )
        played = task if is_own(task) else task_of(self.name, seed_of(index))
        tables = [Table.of(table) for table in played.get("tables") or ()]
        given = [name for name in ASKED if name in played]
        if len(given) != 1 or not tables:
            raise TaskRefused(f"the task has {len(tables)} tables and {given}; expected tables, and one of {ASKED}")
        self._tables, self._played = tables, played
        self._world = self.database(tables)
        self._expected = self._state_wanted()
        shown = "\n".join(
            f"- {table.name}({', '.join(f'{n} {kind}' for n, kind in table.columns)})" for table in tables
        )
        question = f"{played['question']}\n\nThe database ({self._world.dialect}) has the tables:\n{shown}"
        return self.opening(task, question)

    def act(self, tool: ToolOfWorld, text: str, within_s: float) -> str:
        if len(text) > MAX_STATEMENT_CHARS:
            return f"The statement has {len(text)} characters; expected at most {MAX_STATEMENT_CHARS}."
        try:
            return self._world.execute(text, min(STATEMENT_S, within_s))
        except StatementRefused as exc:
            return f"Error: {exc}"

    def scored(self, answer: Sequence[str], within_s: float) -> tuple[float, dict[str, Any]]:
        if "answer" in self._played:
            expected = list(map(str, self._played["answer"]))
            return float(same_values(answer, expected)), {"answer": list(answer), "expected": expected}
        try:
            actual = state_of(self._world.committed())
        except StatementRefused as exc:  # the model made the tables too large to be read
            actual = f"none: {exc}"
        return float(actual == self._expected), {"state": actual, "expected": self._expected}

    def close(self) -> None:
        if hasattr(self, "_world"):
            self._world.close()

    def _state_wanted(self) -> str:
        """Of a task that changes the tables; a reference statement is executed on tables of its own."""
        if "after" in self._played:
            return state_of([Table.of(table) for table in self._played["after"]])
        if "statement" not in self._played:
            return ""
        with contextlib.closing(self.database(self._tables)) as reference:
            try:
                reference.execute(str(self._played["statement"]), STATEMENT_S)
                return state_of(reference.committed())
            except StatementRefused as exc:
                raise TaskRefused(f"the task's statement fails: {exc}") from exc

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        return range(count_of(name, SPLITS))


class MariadbEnvironment(DatabaseEnvironment):
    def database(self, tables: Sequence[Table]) -> Database:
        from sampler.environments.adapters.mariadb_database import MariadbDatabase

        return MariadbDatabase(tables)

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        from sampler.environments.adapters.mariadb_server import server

        server()  # raises where the program or the package is missing
        return super().indices(name)


def state_of(tables: Sequence[Table]) -> str:
    """A hash of names, columns and rows, in whichever order the rows stand."""
    canonical_tables = sorted(
        [table.name.lower(), [name for name, _ in table.columns], table.canonical()] for table in tables
    )
    return hashlib.sha256(json.dumps(canonical_tables).encode()).hexdigest()
