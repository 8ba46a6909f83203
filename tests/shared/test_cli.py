"""`tandem` as a person meets it: answers, messages, exit codes, signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pymongo
import pytest
from typer.testing import CliRunner, Result

from shared.cli import app
from shared.cli.status import look
from shared.mongod import Mongod
from shared.run_documents import Admission, InferenceService, Worker
from shared.states import DataStatus, ServiceStatus
from shared.store import Store
from tests.conftest import ROOT
from tests.shared.builders import claim, make_task
from tests.shared.episodes import announce, whole_run

RECORD = "main:train:0:t0:0:1"
Command = Callable[..., Result]


@pytest.fixture(scope="module")
def played(mongod: Mongod) -> Iterator[str]:
    """A whole run, played once: the commands of this module only read it."""

    async def play() -> None:
        async with Store.open(mongod.connection_string, "played") as store:
            records = await whole_run(store)
            await store.data.set_aside(records[2:3], DataStatus.STALE, "too old")
            await store.services.heartbeat(
                InferenceService(id="http://e:1", url="http://e:1", policy="main", version=1, status=ServiceStatus.UP)
            )
            stats = {"episodes_per_s": 2.5, "claims": 7}
            await store.workers.heartbeat(Worker(id="a", kind="sampler", host="h", pid=7, doing="playing", stats=stats))
            await store.workers.heartbeat(Worker(id="b", kind="sampler", host="h", pid=8, stats=stats))

    asyncio.run(play())
    yield "played"
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database("played")


@pytest.fixture
def tandem(mongod: Mongod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command in an empty folder, against the test's server, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_CONNECTION_STRING", mongod.connection_string)
    monkeypatch.setenv("COLUMNS", "220")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments))

    return run


# ---------------------------------------------------------------------- help and usage


@pytest.mark.parametrize(
    "command", [[], ["tasks"], ["tasks", "import"], ["status"], ["show"], ["eval"], ["audit"], ["trace"]]
)
def test_every_command_explains_itself_and_shows_examples(tandem: Command, command: list[str]) -> None:
    result = tandem(*command, "--help")
    assert result.exit_code == 0
    if command not in ([], ["tasks"]):
        assert "Examples:" in result.output
        assert "--db_connection_string" in result.output


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


# ---------------------------------------------------------------------- which database


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
    monkeypatch.setattr("shared.cli.connect.CONNECT_TIMEOUT_S", 0.3)
    result = tandem("status", "demo", "--db_connection_string", "mongodb://me:secret@127.0.0.1:9/")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "mongodb://127.0.0.1:9/ did not answer within 0.3 s" in result.stderr
    assert "`tandem mongod` starts one" in result.stderr
    assert "secret" not in result.stderr


# ---------------------------------------------------------------------- import


@pytest.mark.parametrize("wrong", ["mongodb://", "mongodb://h:notaport/", "redis://h:1", "mongodb://a:b:secret@h"])
def test_a_connection_string_that_is_none_is_said_without_its_password(tandem: Command, wrong: str) -> None:
    result = tandem("status", "demo", "--db_connection_string", wrong)
    assert result.exit_code == 2
    assert "expected mongodb://HOST:PORT" in result.stderr
    assert "secret" not in result.stderr


def test_an_import_says_what_it_did(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "a", "query": "q"}\n{"id": "b", "query": "q"}\n')
    first = tandem("tasks", "import", "imported", "t.jsonl", "--split", "eval", "--num_generations", "2")
    assert first.exit_code == 0, first.output
    assert "run imported, split eval: 2 inserted, 0 unchanged" in first.stdout
    again = tandem("tasks", "import", "imported", "t.jsonl", "--split", "eval", "--epochs", "2")
    assert "2 inserted, 2 unchanged" in again.stdout
    third = tandem("tasks", "import", "imported", "t.jsonl", "--split", "eval", "--epoch", "5")
    assert "2 inserted, 0 unchanged" in third.stdout
    assert tandem("tasks", "import", "imported", "t.jsonl", "--epoch", "5", "--epochs", "2").exit_code == 2


MIX = """
tasks:
  sources:
    - {name: a, file: t.jsonl, weight: 2, num_generations: 3, max_turns: 2}
    - {name: b, file: t.jsonl, weight: 1}
    - {name: held, file: t.jsonl, split: eval}
"""


def test_a_mixture_is_imported_and_its_held_out_tasks_are_a_round(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "x", "query": "q"}\n{"id": "y", "query": "q"}\n{"id": "z", "query": "q"}\n')
    Path("mix.yml").write_text(MIX)
    result = tandem("tasks", "import", "mixed", "--config", "mix.yml", "--num_generations", "4")
    assert "run mixed, mix.yml: 9 inserted, 0 unchanged" in result.stdout
    assert "0 inserted, 9 unchanged" in tandem("tasks", "import", "mixed", "--config", "mix.yml").stdout
    shown = tandem("eval", "mixed")
    assert (shown.exit_code, "0/3" in shown.stdout) == (0, True)
    (played,) = json.loads(tandem("eval", "mixed", "--json").stdout)["rounds"]
    assert (played["version"], played["step"], played["complete"], list(played["by_source"])) == (0, 0, False, ["held"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either FILE.jsonl or --config MIX.yml"),
        (["t.jsonl", "--config", "mix.yml"], "give either FILE.jsonl or --config MIX.yml"),
        (["--config", "mix.yml", "--epochs", "2"], "--epochs is for a FILE; with --config it stands in mix.yml"),
        (["--config", "mix.yml"], "mix.yml: sources.1.weight is -1"),
    ],
)
def test_what_an_import_takes_is_said(tandem: Command, arguments: list[str], said: str) -> None:
    Path("mix.yml").write_text(MIX.replace("weight: 1", "weight: -1"))
    result = tandem("tasks", "import", "mixed", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_wrong_file_is_refused_line_by_line(tandem: Command) -> None:
    Path("t.jsonl").write_text('{"id": "a", "query": "q", "answer_schema": "bxoed"}\n{"id": "b"}\n')
    result = tandem("tasks", "import", "wrong", "t.jsonl")
    assert result.exit_code == 2
    assert 't.jsonl:1: "answer_schema" is "bxoed"; expected "answer" or "boxed"' in result.stderr
    assert 't.jsonl:2: "query" is missing' in result.stderr
    assert tandem("tasks", "import", "wrong", "absent.jsonl").exit_code == 2


# ---------------------------------------------------------------------- reading a run


def test_status_shows_everything_of_a_run(tandem: Command, played: str) -> None:
    result = tandem("status", played)
    assert result.exit_code == 0, result.output
    for text in (
        "run played is running",
        "settled",
        "too old",
        "http://e:1",
        "UP",
        "h:7",
        "playing",
        "ready data by lag",
    ):
        assert text in result.stdout


async def test_a_run_is_trained_once_every_policy_has_taken_its_last_step(store: Store) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0, num_steps=1))
    await announce(store, 0)
    assert (await look(store)).state == "running"
    await announce(store, 1)
    assert (await look(store)).state == "trained"
    await store.runs.start_trainer("guide", Admission(groups_per_step=1, max_staleness=0, num_steps=1))
    assert (await look(store)).state == "running"


def test_status_as_json_is_for_programs(tandem: Command, played: str) -> None:
    now = json.loads(tandem("status", played, "--json").stdout)
    assert now["tasks"] == {"train": {"settled": 2}}
    assert now["slots"] == {"train": {"scored": 4, "failures": 0}}
    assert now["record_data"] == {"trained": 2, "ready": 1, "stale": 1}
    assert now["set_aside"] == {"stale": {"too old": 1}}
    assert [w["process"] for w in now["workers"]] == ["h:7", "h:8"]
    assert now["rates"]["sampler/episodes_per_s"] == 5.0
    assert now["rates"]["episodes_per_s"] == pytest.approx(4 / 60)
    assert now["policies"][0]["version"] == 1


def test_what_settlement_dropped_is_shown_with_its_reason(tandem: Command, mongod: Mongod, played: str) -> None:
    record, why = "main:train:0:t1:0:1", "zero variance: scores differ by less than 0.1"
    with pymongo.MongoClient(mongod.connection_string) as client:
        run = client[played]
        task, before = run["tasks"].find_one({"tid": "t1"}), run["records"].find_one({"_id": record})
        run["tasks"].update_one({"tid": "t1"}, {"$set": {"status": "abandoned", "outcome": f"abandoned: {why}"}})
        run["records"].update_one({"_id": record}, {"$set": {"status": "abandoned", "reason": why}})
        try:
            assert f"1 × abandoned: {why}" in tandem("status", played).stdout
            assert json.loads(tandem("status", played, "--json").stdout)["abandoned"] == {f"abandoned: {why}": 1}
            assert why in tandem("show", played, record).stdout
        finally:
            run["tasks"].replace_one({"tid": "t1"}, task)
            run["records"].replace_one({"_id": record}, before)


def test_the_age_of_ready_data_is_counted_in_optimizer_steps(tandem: Command, mongod: Mongod, played: str) -> None:
    with pymongo.MongoClient(mongod.connection_string) as client:
        data = client[played]["record_data"]
        data.update_one({"status": "ready"}, {"$set": {"min_version": 0}})
        try:
            assert json.loads(tandem("status", played, "--json").stdout)["policies"][0]["ready_by_lag"] == {"1": 1}
        finally:
            data.update_one({"status": "ready"}, {"$set": {"min_version": 3}})


def test_show_lists_what_to_choose_from_then_a_task_then_an_episode(tandem: Command, played: str) -> None:
    recent = tandem("show", played)
    assert RECORD in recent.stdout
    task = tandem("show", played, "t0")
    assert "2+2?" in task.stdout
    assert "2 attempts" in task.stdout
    episode = tandem("show", played, RECORD)
    assert episode.exit_code == 0
    for text in (
        *("2+2?", "message [0]", "reply 1", "calculator({'e': '2+2'})", "[4]  [0.25 s]"),
        *("v3 × 2, v4 × 1", "score", "steps: 1", "6 of 12 tokens have a loss", "after 1 (shares 5 tokens)"),
    ):
        assert text in episode.stdout
    assert "-0.4000" not in episode.stdout
    assert "-0.4000" in tandem("show", played, RECORD, "--tokens").stdout


def test_show_says_when_nothing_is_called_so(tandem: Command, played: str) -> None:
    result = tandem("show", played, "t99")
    assert result.exit_code == 2
    assert "no record and no task is called 't99'" in result.stderr


def test_trace_gives_the_chain_and_a_query_that_gives_the_same(tandem: Command, mongod: Mongod, played: str) -> None:
    result = tandem("trace", played, "--step", "1")
    assert result.exit_code == 0, result.output
    for text in (RECORD, "v3×2 v4×1", "+1.0000", "-1.0000", "calculator", "first in main:1", "2 records of 1 tasks"):
        assert text in result.stdout
    query = json.loads(result.stdout.splitlines()[-1])
    with pymongo.MongoClient(mongod.connection_string) as client:
        pasted = list(client[played]["record_data"].aggregate(query))
    assert pasted == json.loads(tandem("trace", played, "--step", "1", "--json").stdout)["rows"]
    assert {row["record"] for row in pasted} == {RECORD, "main:train:0:t0:1:1"}
    assert len(pasted) == 6


def test_trace_of_a_record_says_which_steps_used_it(tandem: Command, played: str) -> None:
    assert "step 1 of policy main: first in main:1" in tandem("trace", played, "--record", RECORD).stdout
    assert "none yet" in tandem("trace", played, "--record", "main:train:0:t1:0:1").stdout


def test_trace_of_nothing_exits_with_1(tandem: Command, played: str) -> None:
    assert tandem("trace", played, "--step", "77").exit_code == 1
    assert "gave no training data" in tandem("trace", played, "--record", "r").stderr


def test_audit_exits_with_0_when_all_is_well(tandem: Command, played: str) -> None:
    result = tandem("audit", played)
    assert result.exit_code == 0, result.output
    assert "stale: too old" in result.stdout
    assert json.loads(tandem("audit", played, "--json").stdout)["ok"]


async def test_audit_exits_with_1_on_a_violation_and_names_it(tandem: Command, store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    await claim(store)
    result = await asyncio.to_thread(tandem, "audit", store.run)
    assert result.exit_code == 1
    assert "main:train:0:t0 slot 0 is leased" in result.stdout
    assert (await asyncio.to_thread(tandem, "audit", store.run, "--running")).exit_code == 0


# ---------------------------------------------------------------------- as processes


def spawn(*arguments: str, cwd: Path = ROOT, uri: str | None = None) -> "subprocess.Popen[str]":
    environment = {k: v for k, v in os.environ.items() if k != "DB_CONNECTION_STRING"} | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "shared.cli", *arguments],
        cwd=cwd,
        env=environment | ({"DB_CONNECTION_STRING": uri} if uri else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watching_ends_cleanly_on_ctrl_c(mongod: Mongod, played: str) -> None:
    uri = mongod.connection_string
    with spawn("status", played, "--watch", "--json", "--interval_s", "0.1", uri=uri) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["run"] == played
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, "tandem: interrupted\n")


def test_a_wrong_usage_of_the_program_itself_exits_with_2_and_no_traceback() -> None:
    with spawn("tasks", "import", "run", "absent.jsonl", "--epoch", "1", "--epochs", "2") as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (2, "")
    assert err.startswith("tandem: --epoch and --epochs exclude each other")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_mongod_serves_in_the_foreground_and_takes_its_server_along(tmp_path: Path, ending: signal.Signals) -> None:
    with spawn("mongod", cwd=tmp_path) as child:
        assert child.stdout is not None
        uri = child.stdout.readline().strip()
        with pymongo.MongoClient(uri, serverSelectionTimeoutMS=5_000) as client:
            pid = client.admin.command("serverStatus")["pid"]
        assert json.loads((tmp_path / "output/mongodb/mongod.json").read_text())["port"] == urlsplit(uri).port
        child.send_signal(ending)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_mongod_that_dies_by_itself_exits_with_1_and_its_log(tmp_path: Path) -> None:
    with spawn("mongod", "--folder", str(tmp_path)) as child:
        assert child.stdout is not None
        uri = child.stdout.readline().strip()
        with pymongo.MongoClient(uri) as client:
            os.kill(client.admin.command("serverStatus")["pid"], signal.SIGKILL)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "mongod ended by itself with status -9" in err


def test_mongod_without_a_binary_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGOD", str(tmp_path / "none"))
    started = time.monotonic()
    result = CliRunner().invoke(app, ["mongod", "--folder", str(tmp_path / "db")])
    assert (result.exit_code, "not an executable file" in result.stderr) == (2, True)
    assert time.monotonic() - started < 10
