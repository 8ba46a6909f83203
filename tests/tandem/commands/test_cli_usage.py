"""`tandem`: help, wrong usage, and which database is meant."""

import json
import re
from pathlib import Path

import pytest
import typer

from shared.processes.mongod import Mongod
from tandem import app
from tandem.commands.programs import PROGRAMS
from tests.tandem.commands.commands import RECORD, Command


@pytest.mark.parametrize(
    "command",
    [[], ["tasks"], ["tasks", "import"], ["status"], ["pause"], ["resume"], ["show"], ["eval"], ["audit"], ["trace"]],
)
def test_every_command_explains_itself_and_shows_examples(tandem: Command, command: list[str]) -> None:
    result = tandem(*command, "--help")
    assert result.exit_code == 0
    if command not in ([], ["tasks"]):
        assert "Examples:" in result.output
        assert "--db_connection_string" in result.output


def test_no_help_text_turns_a_part_of_an_id_into_a_picture(tandem: Command) -> None:
    """Markdown's `:train:` is a tram: an id with one cannot be copied from the page. (A program's help is its own.)"""
    groups = {(): typer.main.get_command(app)}
    helps = {}
    while groups:
        path, command = groups.popitem()
        if path and path[0] in PROGRAMS:  # it would become that program
            continue
        helps[path] = tandem(*path, "--help").output
        groups |= {(*path, name): child for name, child in getattr(command, "commands", {}).items()}
    assert len(helps) >= 13
    strange = {path: re.findall(r"[\U0001f000-\U0001ffff]", text) for path, text in helps.items()}
    assert {path: found for path, found in strange.items() if found} == {}


def test_every_command_that_a_page_or_a_message_names_exists(tandem: Command) -> None:
    root = Path(__file__).parents[3]
    files = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    files += [path for folder in ("sampler", "shared", "trainer", "scripts") for path in (root / folder).rglob("*.py")]
    named = {
        name for path in files for name in re.findall(r"(?:`|^)tandem ([a-z][a-z-]*)", path.read_text(), re.MULTILINE)
    }
    assert len(named) >= 9
    assert [name for name in sorted(named - set(PROGRAMS)) if tandem(name, "--help").exit_code != 0] == []


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["status"], ["status", "r", "--nonsense"], ["tasks", "import", "r"], ["trace", "r", "--step", "x"]],
)
def test_wrong_usage_exits_with_2(tandem: Command, arguments: list[str]) -> None:
    assert tandem(*arguments).exit_code == 2


def test_trace_wants_a_step_or_a_record(tandem: Command) -> None:
    for arguments in ([], ["--step", "1", "--record", RECORD]):
        result = tandem("trace", "r", *arguments)
        assert (result.exit_code, result.stderr) == (2, "tandem: give either --step N or --record R\n")


def test_without_a_database_the_message_says_where_one_may_come_from(
    tandem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DB_CONNECTION_STRING")
    result = tandem("status", "demo")
    assert result.exit_code == 2
    for remedy in (
        "--db_connection_string",
        "DB_CONNECTION_STRING",
        "tandem mongod",
        "output/demo/mongodb/mongod.json",
    ):
        assert remedy in result.stderr


@pytest.mark.parametrize("folder", ["output/played/mongodb", "output/mongodb"])
def test_the_embedded_server_of_the_run_or_of_this_folder_is_found(
    tandem: Command, monkeypatch: pytest.MonkeyPatch, mongod: Mongod, played: str, folder: str
) -> None:
    monkeypatch.delenv("DB_CONNECTION_STRING")
    Path(folder).mkdir(parents=True)
    (Path(folder) / "mongod.json").write_text(json.dumps({"port": mongod.port}))
    assert tandem("status", played).exit_code == 0
    (Path(folder) / "mongod.json").write_text("{}")
    result = tandem("status", played)
    assert result.exit_code == 2
    assert f"{folder}/mongod.json: expected" in result.stderr


def test_a_flag_is_stronger_than_the_environment(tandem: Command, played: str) -> None:
    result = tandem("status", played, "--db_connection_string", "redis://h")
    assert result.exit_code == 2
    assert "mongodb://" in result.stderr


def test_a_run_that_does_not_exist_is_named_and_not_made(tandem: Command, played: str) -> None:
    for _ in range(2):
        result = tandem("status", "plaid")
        assert result.exit_code == 2
        assert "no run 'plaid'" in result.stderr
        assert played in result.stderr


def test_a_run_name_that_no_database_can_have_is_refused(tandem: Command) -> None:
    result = tandem("status", "a b")
    assert (result.exit_code, "run name 'a b'" in result.stderr) == (2, True)


def test_a_database_that_does_not_answer_exits_with_1_and_a_remedy(
    tandem: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.commands.connect.CONNECT_TIMEOUT_S", 0.3)
    result = tandem("status", "demo", "--db_connection_string", "mongodb://me:secret@127.0.0.1:9/")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "mongodb://127.0.0.1:9/ did not answer within 0.3 s" in result.stderr
    assert "`tandem mongod` starts one" in result.stderr
    assert "secret" not in result.stderr
    assert "Topology" not in result.stderr, "the driver's own state helps no reader"
    assert len(result.stderr) < 400


@pytest.mark.parametrize(("wrong", "says"), [(" ", "is blank"), ("127.0.0.1:27017", "does not begin with mongodb://")])
def test_what_is_no_connection_string_is_refused_in_one_line(tandem: Command, wrong: str, says: str) -> None:
    result = tandem("status", "demo", "--db_connection_string", wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"db_connection_string {says}" in result.stderr
    assert "expected mongodb://HOST:PORT/" in result.stderr
    assert "***" not in result.stderr


@pytest.mark.parametrize("wrong", ["mongodb://", "mongodb://h:notaport/", "redis://h:1", "mongodb://a:b:secret@h"])
def test_a_connection_string_that_is_none_is_said_without_its_password(tandem: Command, wrong: str) -> None:
    result = tandem("status", "demo", "--db_connection_string", wrong)
    assert result.exit_code == 2
    assert "expected mongodb://HOST:PORT" in result.stderr
    assert "secret" not in result.stderr
