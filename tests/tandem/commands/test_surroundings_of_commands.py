"""Commands on a terminal, in a folder, beside servers as people have them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.conftest import ROOT
from tests.tandem.commands.commands import RECORD, Command


def _started(uri: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tandem", *arguments]
    given = os.environ | {"DB_CONNECTION_STRING": uri} | environment
    return subprocess.Popen(
        command, cwd=ROOT, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="latin-1"
    )


@pytest.mark.parametrize(
    "arguments", [("show", RECORD), ("audit",), ("league",), ("trace", "--step", "1"), ("status",)]
)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_characters_gets_others(
    mongod: Mongod, played: str, arguments: tuple[str, ...], encoding: str
) -> None:
    verb, *rest = arguments
    done = _started(mongod.connection_string, verb, played, *rest, PYTHONIOENCODING=encoding, COLUMNS="0")
    out, err = done.communicate(timeout=120)
    assert "Traceback" not in err
    assert done.returncode in ((0,) if verb != "league" else (0, 1, 2)), err
    assert out or verb == "league", "of COLUMNS=0 nothing would be printed"


@pytest.mark.parametrize("arguments", [("show", RECORD), ("audit",), ("status", "--json"), ("runs",)])
def test_a_command_whose_output_is_lost_ends_with_one_line_and_1(
    mongod: Mongod, played: str, arguments: tuple[str, ...]
) -> None:
    verb, *rest = arguments
    given = [verb, *rest] if verb == "runs" else [verb, played, *rest]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tandem", *given],
            cwd=ROOT,
            env=os.environ | {"DB_CONNECTION_STRING": mongod.connection_string},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.endswith("its output cannot be written: No space left on device\n")


def test_ctrl_c_during_an_audit_ends_it(mongod: Mongod, played: str) -> None:
    """In the process itself, so that the moment is known: while a cursor's answer arrives."""
    program = """
import signal, sys
from pymongo.network_layer import PyMongoProtocol
received, answers = PyMongoProtocol.buffer_updated, 0
at = int(sys.argv.pop())
def answered(protocol, *arguments):
    global answers
    received(protocol, *arguments)
    answers += 1
    if answers == at:
        signal.raise_signal(signal.SIGINT)
PyMongoProtocol.buffer_updated = answered
from tandem import main
main()
"""
    for at in (14, 20, 26):
        done = subprocess.run(
            [sys.executable, "-c", program, "audit", played, str(at)],
            cwd=ROOT,
            env=os.environ | {"DB_CONNECTION_STRING": mongod.connection_string},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "tandem: interrupted\n"), at


def test_a_command_of_no_run_finds_the_server_that_runs_here(
    tandem: Command, monkeypatch: pytest.MonkeyPatch, mongod: Mongod
) -> None:
    """As README says: `tandem mongod --folder output/demo/mongodb`, then `tandem runs`."""
    monkeypatch.delenv("DB_CONNECTION_STRING")
    ended = Path("output/ended/mongodb")
    ended.mkdir(parents=True)
    (ended / "mongod.json").write_text('{"port": 9}')
    result = tandem("runs")
    assert (result.exit_code, "no database given" in result.stderr) == (2, True)
    with Mongod(Path("output/demo/mongodb")):

        async def begin() -> None:
            async with Store.open(Mongod(Path("output/demo/mongodb"), port=_port()).connection_string, "demo"):
                pass

        asyncio.run(begin())
        for verb in ("runs", "gc"):
            result = tandem(verb)
            assert (result.exit_code, result.stderr) == (0, "")
        assert "demo" in tandem("runs").stdout
        with Mongod(Path("output/other/mongodb")):
            result = tandem("runs")
            assert result.exit_code == 2
            assert "2 databases run here: mongodb://127.0.0.1:" in result.stderr
            assert "(output/other/mongodb); expected --db_connection_string with one of them" in result.stderr


def _port() -> int:
    return int(json.loads(Path("output/demo/mongodb/mongod.json").read_text())["port"])


async def test_two_names_that_differ_in_case_alone_are_one_line(mongod: Mongod, tandem: Command, store: Store) -> None:
    other = store.run.upper().replace("TEST", "test")
    for command in (("tasks", "import", other, str(ROOT / "assets/example/eval.jsonl")),):
        result = await asyncio.to_thread(tandem, *command)
        assert result.exit_code == 2
        assert f"run {other}: the server at " in result.stderr
        assert f"has run {store.run}, whose name differs in case alone" in result.stderr


async def test_texts_of_megabytes_are_cut_with_the_option_that_prints_all(
    mongod: Mongod, played: str, tandem: Command
) -> None:
    async with Store.open(mongod.connection_string, played) as store:
        turns = store.database["dispatched_sampling_tasks"]
        before = await turns.find_one({"record": RECORD, "turn": 0})
        assert before is not None
        text = "b" + "x" * 3_000_000 + "e"
        await turns.update_one({"_id": before["_id"]}, {"$set": {"tool_calls.0.result": text}})
        try:
            shown = (await asyncio.to_thread(tandem, "show", played, RECORD)).stdout
            whole = (await asyncio.to_thread(tandem, "show", played, RECORD, "--whole")).stdout
        finally:
            await turns.replace_one({"_id": before["_id"]}, before)
    assert len(shown) < 40_000
    assert "characters are left out; --whole prints them" in shown
    assert len(whole) > 3_000_000


def test_the_version_is_printed(tandem: Command) -> None:
    result = tandem("--version")
    assert (result.exit_code, result.stdout) == (0, "tandem 0.1.0\n")


def test_tandem_mongod_ends_its_server_with_its_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "mongod", "--folder", str(tmp_path / "server")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        assert process.wait(120) == 0
    assert (tmp_path / "server/data/mongod.lock").read_text() == ""
