"""The database's tasks on a real SQLite, and on a real MariaDB where MARIADB_PYTHON names a Python with pymysql and mariadbd is
installed: solvable, scored by answer or state, and bounded for any statement."""

import contextlib
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sampler.environments.adapters.database_results import StatementRefused
from sampler.environments.adapters.database_tasks import SPLITS, THEMES, Table, task_of
from sampler.environments.adapters.sqlite_database import SqliteDatabase
from tests.sampler.environments.acting import call, commit, solved_sql, sql
from tests.sampler.environments.services import Service, service

PYTHON = os.environ.get("MARIADB_PYTHON", "")
HAS_MARIADB = PYTHON and (os.environ.get("MARIADBD") or shutil.which("mariadbd"))
TABLES = [{"name": "t", "columns": [["id", "INTEGER"], ["name", "VARCHAR(20)"]], "rows": [[1, "a"], [2, None]]}]
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
NESTED = ", ".join(f"v{k} AS (SELECT a.x FROM v{k - 1} a, v{k - 1} b)" for k in range(1, 30))
NESTED = f"WITH v0 AS (SELECT 1 AS x), {NESTED} SELECT count(*) FROM v29"


@pytest.fixture(scope="module", params=["database", "mariadb"])
def db(request: pytest.FixtureRequest) -> Iterator[Service]:
    if request.param == "mariadb" and not HAS_MARIADB:
        pytest.skip("MARIADB_PYTHON, a Python with pymysql, is not set, or mariadbd is not installed")
    python = ["--worker_python", PYTHON] if request.param == "mariadb" else []
    kinds = f"train={request.param}:train,heldout={request.param}:heldout"
    with service("--workers", "1", *python, "--environments", kinds) as found:
        yield found


def test_each_generated_task_can_be_solved_by_sql_and_its_answer_is_that_of_the_database(db: Service) -> None:
    for kind in SPLITS:
        ends = [solved_sql(db, kind, index) for index in range(30)]
        assert [end["reward"] for end in ends] == [1.0] * 30, [end["result"] for end in ends if end["reward"] != 1.0]
        assert {"answer" in end["result"] for end in ends} == {True, False}, "both kinds of tasks"


def test_no_table_of_a_held_out_task_is_one_of_a_training_task() -> None:
    names = {
        split: {table["name"] for seed in range(50) for table in task_of(split, seed)["tables"]} for split in THEMES
    }
    assert names["train"].isdisjoint(names["heldout"])
    assert task_of("train", 3) == task_of("train", 3) != task_of("heldout", 3)


def test_no_task_that_asks_for_a_change_is_done_by_doing_nothing() -> None:
    for split, count in SPLITS.items():
        for seed in range(count):
            task = task_of(split, seed)
            assert task.get("after") != task["tables"], (split, seed, task["question"])


def own(**task: Any) -> dict[str, Any]:
    return {"question": "?", "tables": TABLES, **task}


def test_a_change_counts_by_the_state_that_was_committed_and_not_by_how_it_was_reached(db: Service) -> None:
    task = own(statement="UPDATE t SET name = 'b' WHERE id = 2")
    for statements, reward in (
        (["UPDATE t SET name = 'b' WHERE name IS NULL"], 1.0),
        (["DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (2, 'b')"], 1.0),
        (["UPDATE t SET name = 'b'"], 0.0),
        (["BEGIN", "UPDATE t SET name = 'b' WHERE id = 2"], 0.0),
        (["BEGIN", "UPDATE t SET name = 'b' WHERE id = 2", "COMMIT"], 1.0),
        (["UPDATE t SET name = 'b' WHERE id = 2", "CREATE TABLE more (id INTEGER)"], 0.0),
        ([], 0.0),
    ):
        session, _ = db.start("train", 0, **task)
        for statement in statements:
            assert "Error" not in sql(db, session, statement)
        end = commit(db, session)
        assert (end["status"], end["reward"]) == ("completed", reward), statements


def test_an_answer_counts_by_its_values(db: Service) -> None:
    for values, reward in (
        (["Ghent", "3"], 1.0),
        (["3.0", " ghent "], 1.0),
        (["3"], 0.0),
        (["3", "3", "Ghent"], 0.0),
        (["NaN", "Ghent"], 0.0),
        ([], 0.0),
    ):
        session, _ = db.start("train", 0, **own(answer=[3, "Ghent"]))
        assert commit(db, session, *values)["reward"] == reward, values


def test_a_reply_that_is_wrong_is_told_and_turns_end(db: Service) -> None:
    session, step = db.start("train", 0, max_turns=5, **own(answer=["1"]))
    assert [tool["function"]["name"] for tool in step["tools"]] == ["execute_sql", "commit_final_answer"]
    for calls, told in (
        ([("drop_all", {})], "No such tool; there are execute_sql, commit_final_answer."),
        ([("execute_sql", "{")], "The arguments are not JSON"),
        ([("execute_sql", {"q": 1})], "query is missing"),
    ):
        step = call(db, session, *calls)
        assert (told in step["messages"][0]["content"], step["reward"]) == (True, 0.0), step
    step = call(db, session, *[("execute_sql", {"query": "SELECT 1"})] * 6)
    assert [m["content"][:8] for m in step["messages"]] == [step["messages"][0]["content"][:8]] * 4 + ["Not done"] * 2
    step = db.say(session, "I do not know").json()
    assert (step["status"], step["reward"], step["metrics"]["score"]) == ("task limit reached", 0.0, 0.0)
    assert step["metrics"]["unread_actions"] == 4


def test_without_tools_a_reply_marks_its_statement(db: Service) -> None:
    session, step = db.start("train", 0, form="text", **own(answer=[1, 2]))
    assert ("<sql>" in step["messages"][0]["content"], step["tools"]) == (True, [])
    told = db.say(session, "<sql>SELECT id FROM t ORDER BY id</sql>").json()["messages"]
    assert told == [{"role": "user", "content": "id\n1\n2\n[2 rows]"}]
    assert db.say(session, "So: <answer>1\n2</answer>").json()["reward"] == 1.0


def test_no_statement_takes_longer_or_more_than_it_may(db: Service) -> None:
    """Each is answered, and the session and its neighbour go on."""
    other, _ = db.start("train", 1, **own(answer=["1"]))
    session, _ = db.start("train", 0, max_turns=100, **own(answer=["1"]))
    for statement in (
        ENDLESS,
        NESTED,
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
        "CREATE TABLE big AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, 'xxxxxxxxxx' FROM c",
        "SELECT '" + "x" * 30_000 + "'",
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
        "SELECT '\0', '\ud800'".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        "SELECT 'x",
        "SELECT 1; SELECT 2",
        "",
        "BEGIN",
    ):
        begun = time.monotonic()
        told = sql(db, session, statement)
        assert len(told) < 10_000
        assert time.monotonic() - begun < 60, f"{statement[:60]} holds up the others of its worker"
    assert "1" in sql(db, session, "SELECT id FROM t WHERE id = 1")
    assert "1" in sql(db, other, "SELECT id FROM t WHERE id = 1")
    assert "workers_lost" not in db.health()["counts"]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SELECT printf('%.*c', 1000000000, 'x')", "not authorized to use function: printf"),
        ("SELECT format('%.*c', 1000000000, 'x')", "not authorized to use function: format"),
        ("SELECT ltrim(LONG, hex(randomblob(51)))", "more than 100 characters"),
        (
            "SELECT max(instr(LONG || random(), substr(LONG, 1, 48000) || 'x')) FROM t a, t b, t c, t d, t e, t f",
            "more than 0.5 s",
        ),
    ],
)
def test_what_sqlite_does_in_one_step_without_looking_at_the_clock_is_short(statement: str, told: str) -> None:
    tables = [Table("t", [("id", "INTEGER")], [[k] for k in range(10)])]
    begun = time.process_time()
    with contextlib.closing(SqliteDatabase(tables)) as database, pytest.raises(StatementRefused, match=told):
        database.execute(statement.replace("LONG", "hex(zeroblob(49000))"), 0.5)
    assert time.process_time() - begun < 4


def test_trim_is_as_sqlites_own() -> None:
    texts = (
        "'xxaxx', 'x'",
        "' a ', ' '",
        "NULL, 'x'",
        "'a', NULL",
        "'a', ''",
        "12, '1'",
        "2.50, '0'",
        "x'6162', 'b'",
        "'äb', 'bä'",
    )
    asked = [f"{trim}({given})" for given in texts for trim in ("trim", "ltrim", "rtrim")]
    with contextlib.closing(SqliteDatabase([])) as database, contextlib.closing(sqlite3.connect(":memory:")) as plain:
        for one in asked:
            (own,) = plain.execute(f"SELECT {one}").fetchone()
            assert database.execute(f"SELECT {one}", 60).splitlines()[1] == ("NULL" if own is None else own), one


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'FILE' AS other",
        "VACUUM INTO 'FILE'",
        "PRAGMA max_page_count = 1000000000",
        "PRAGMA hard_heap_limit = 0",
        "SELECT load_extension('FILE')",
        "SELECT fts3_tokenizer('simple')",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "SELECT 1 INTO OUTFILE 'FILE'",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t",
        "SELECT * FROM mysql.user",
        "CREATE DATABASE other",
        "SET GLOBAL max_connections = 1",
        "SHUTDOWN",
        "CREATE PROCEDURE p() BEGIN END",
    ],
)
def test_a_statement_reaches_no_file_no_setting_and_no_other_database(
    db: Service, tmp_path: Path, statement: str
) -> None:
    tmp_path.chmod(0o777)
    session, _ = db.start("train", 0, **own(answer=["1"]))
    assert sql(db, session, statement.replace("FILE", str(tmp_path / "file"))).startswith("Error: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    not HAS_MARIADB, reason="MARIADB_PYTHON, a Python with pymysql, is not set, or mariadbd is not installed"
)
def test_a_session_of_mariadb_puts_no_file_elsewhere_and_its_end_and_score_do_not_depend_on_what_it_broke(
    tmp_path: Path,
) -> None:
    elsewhere, own_folder = tmp_path / "elsewhere", tmp_path / "own"
    for folder in (elsewhere, own_folder):
        folder.mkdir()
        folder.chmod(0o777)
    for above in (tmp_path, *tmp_path.parents[:3]):
        above.chmod(0o711)  # the server's user passes through it
    dirs = f"DATA DIRECTORY = '{elsewhere}'"
    part = f"PARTITION BY RANGE (x) (PARTITION p VALUES LESS THAN (5) {dirs})"
    groups = [[f"CREATE TABLE d{k} (x INT) {how}"] for k, how in enumerate((dirs, f"ENGINE = MyISAM {dirs}", part))]
    groups += [["XA START 'q'", "INSERT INTO t VALUES (3, 'z')", "XA END 'q'", "XA PREPARE 'q'"]]
    groups += [["SET PASSWORD = PASSWORD('x')", "KILL CONNECTION_ID()", "SELECT 1", "SELECT 1"]]
    with service(
        "--workers", "1", "--worker_python", PYTHON, "--environments", "train=mariadb:train", TMPDIR=str(own_folder)
    ) as db:
        for statements in groups:
            session, _ = db.start("train", 0, **own(answer=["1"]))
            for statement in statements:
                sql(db, session, statement)
            assert not [path for path in elsewhere.rglob("*") if path.is_file()], statements
            begun = time.monotonic()
            assert commit(db, session, 2)["reward"] == 0.0, statements
            db.start("train", 0, **own(answer=["1"]))
            assert time.monotonic() - begun < 30, f"{statements} holds up the others"


def test_a_task_that_is_none_is_refused(db: Service) -> None:
    for task in (
        {"question": "?", "answer": ["1"]},
        own(),
        own(answer=["1"], statement="DELETE FROM t"),
        own(statement="DELETE FROM nothing"),
        {"form": "verse"},
        own(answer=["1"]) | {"tables": [{"name": "t", "columns": [["a", "INTEGER)); --"]], "rows": []}]},
    ):
        answer = db.http.post("/start_sample", json={"name": "train", "index": 0, "custom_task": task})
        assert answer.status_code == 422, (task, answer.text)


def test_random_statements_are_answered_and_never_end_the_worker(db: Service) -> None:
    drawn = random.Random(7)
    words = [
        "SELECT",
        "FROM",
        "t",
        "WHERE",
        "id",
        "=",
        "1",
        "(",
        ")",
        ",",
        "*",
        "'",
        '"',
        ";",
        "name",
        "INSERT INTO",
        "VALUES",
    ]
    words += ["DROP TABLE", "UPDATE", "SET", "NULL", "--", "/*", "*/", "%", "?", "@", "x'ff'", "é"]
    session, _ = db.start("train", 0, max_turns=10_000, **own(answer=["1"]))
    for _ in range(300):
        statement = " ".join(drawn.choices(words, k=drawn.randint(1, 12)))
        if drawn.random() < 0.2:
            statement = "".join(map(chr, drawn.choices(range(1, 0x2FF), k=30)))
        assert isinstance(sql(db, session, statement), str)
    assert commit(db, session, 1)["reward"] == 1.0
    assert "workers_lost" not in db.health()["counts"]
