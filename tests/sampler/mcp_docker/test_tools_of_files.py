"""The tools of MCP-Docker that read: files, search, SQL."""

import contextlib
import os
from pathlib import Path

import pytest

from sampler.mcp_docker.tools import files, search, sql
from sampler.mcp_docker.tools.serving import ToolArguments, ToolRefusal
from tests.sampler.mcp_docker.tool_files import corpus, database

pytestmark = pytest.mark.slow


# ---------------------------------------------------------------- files


def test_files_are_written_read_edited_listed_and_found(folder: Path) -> None:
    space = files.Workspace(".")
    space.write(files.WriteArguments(path="a/b/c.txt", content="one\ntwo\nthree\n"))
    assert space.read(files.ReadArguments(path="a/b/c.txt", first_line=2, lines=1)) == "two\n[lines 2 to 2 of 3]"
    space.edit(files.EditArguments(path="a/b/c.txt", old="two", new="TWO"))
    assert space.search(files.SearchFilesArguments(text="two")) == "a/b/c.txt:2: TWO"
    assert space.entries(files.ListArguments(levels=3)).splitlines() == ["a/", "a/b/", "a/b/c.txt  14 bytes"]
    with pytest.raises(ToolRefusal, match="occurs 0 times"):
        space.edit(files.EditArguments(path="a/b/c.txt", old="absent", new=""))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../secret", "without .."),
        ("a/../../secret", "without .."),
        ("/etc/passwd", "relative"),
        ("link", "symbolic link"),
        ("folder_link/secret", "symbolic link"),
        ("dangling", "symbolic link"),
        ("fifo", "not a regular file|No such device"),
        ("a\0b", "NUL"),
        ("inside", "folder|directory"),
        ("hard", "another name"),
    ],
)
def test_no_path_leads_out_of_the_workspace(tmp_path: Path, path: str, reason: str) -> None:
    inside = tmp_path / "workspace"
    (inside / "inside").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (inside / "link").symlink_to(secret)
    (inside / "dangling").symlink_to(tmp_path / "new")
    (inside / "folder_link").symlink_to(tmp_path)
    os.link(secret, inside / "hard")
    os.mkfifo(inside / "fifo")
    space = files.Workspace(str(inside))
    if path != "hard":
        with pytest.raises(ToolRefusal, match=reason):
            space.read(files.ReadArguments(path=path))
    with pytest.raises(ToolRefusal, match=reason):
        space.write(files.WriteArguments(path=path, content="changed"))
    assert secret.read_text() == "secret"
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- search


def test_search_ranks_reads_and_takes_no_operator_from_a_query(tmp_path: Path) -> None:
    found = search.Corpus(corpus(tmp_path))
    both = found.search(search.CorpusSearchArguments(query="Danube"))
    assert "[a] Rivers" in both
    assert "[b] Lakes" in both
    assert found.search(search.CorpusSearchArguments(query="danube rivers")).startswith("[a] Rivers")
    assert found.read(search.CorpusReadArguments(id="a")) == "Rivers\nThe Danube flows through ten countries."
    for query in ('"', "NEAR(a b)", "title:x AND", "a* OR (", "-", "Danube'; DROP TABLE documents; --"):
        with contextlib.suppress(ToolRefusal):
            found.search(search.CorpusSearchArguments(query=query))
    with pytest.raises(ToolRefusal, match="no document 'z'"):
        found.read(search.CorpusReadArguments(id="z"))


def test_a_folder_is_indexed_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / "sub" / "page.md").write_text("Grüße aus Ulm")
    assert search.index(tmp_path / "i.sqlite", [tmp_path / "docs"]) == 1
    assert "sub/page.md" in search.Corpus(tmp_path / "i.sqlite").search(
        search.CorpusSearchArguments(query="grusse ulm")
    )
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"txt": 1}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2"):
        search.index(tmp_path / "j.sqlite", [tmp_path / "bad.jsonl"])


# ---------------------------------------------------------------- sql


def test_sql_reads_within_bounds_and_writes_nothing(folder: Path) -> None:
    path = database(folder)
    before = path.read_bytes()
    base = sql.DatabaseFile(path, writable=False)
    assert "CREATE TABLE cities" in base.tables(ToolArguments())
    assert (
        base.query(sql.QueryArguments(statement="SELECT name FROM cities ORDER BY 1", rows=1))
        == "name\nLinz\n[more than 1 rows]"
    )
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    for statement, reason in (
        ("INSERT INTO cities VALUES ('x', 1)", "readonly"),
        ("DROP TABLE cities", "readonly"),
        ("ATTACH '/etc/passwd' AS other", "authorization denied|not authorized"),
        ("VACUUM INTO 'copy.sqlite'", "authorization denied|not authorized"),
        ("PRAGMA journal_mode = WAL", "authorization denied|not authorized"),
        ("PRAGMA writable_schema = 1", "authorization denied|not authorized"),
        ("SELECT load_extension('x')", "not authorized|no such function"),
        ("SELECT readfile('/etc/passwd')", "no such function"),
        ("SELECT length(zeroblob(1000000000))", "too big"),
        ("SELECT 1; SELECT 2", "one statement"),
        (endless, "ended after"),
    ):
        with pytest.raises(ToolRefusal, match=reason):
            base.query(sql.QueryArguments(statement=statement, timeout_s=0.5))
    assert path.read_bytes() == before


def test_sql_on_a_copy_changes_only_the_copy(folder: Path) -> None:
    path = database(folder)
    before = path.read_bytes()
    base = sql.DatabaseFile(path, writable=True)
    assert base.query(sql.QueryArguments(statement="DELETE FROM cities WHERE name = 'Ulm'")) == "[1 rows changed]"
    again = sql.DatabaseFile(path, writable=True)
    assert again.query(sql.QueryArguments(statement="SELECT count(*) FROM cities")).splitlines()[1] == "1"
    assert path.read_bytes() == before
