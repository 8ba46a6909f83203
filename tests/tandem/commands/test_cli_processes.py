"""`tandem` as processes: signals, exit codes, and the server in the foreground."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymongo
import pytest
from typer.testing import CliRunner

from shared.processes.mongod import Mongod
from tandem import app
from tests.conftest import ROOT


class Child(subprocess.Popen[str]):
    """A process that is ended where the body of its `with` fails: Popen itself would wait for its end, which may never come."""

    def __exit__(self, kind: Any, *of_it: Any) -> None:
        if kind is not None:
            self.terminate()  # a server that it started ends with it
            try:
                self.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()
        super().__exit__(kind, *of_it)


def spawn(*arguments: str, cwd: Path = ROOT, uri: str | None = None) -> Child:
    environment = {k: v for k, v in os.environ.items() if k != "DB_CONNECTION_STRING"} | {"PYTHONPATH": str(ROOT)}
    return Child(
        [sys.executable, "-m", "tandem", *arguments],
        cwd=cwd,
        env=environment | ({"DB_CONNECTION_STRING": uri} if uri else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_test_that_fails_ends_its_child(mongod: Mongod, played: str) -> None:
    child = spawn("status", played, "--watch", "--json", uri=mongod.connection_string)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(AssertionError, match="of the test"), child:
        raise AssertionError("of the test")
    assert child.returncode is not None


def test_watching_ends_cleanly_on_ctrl_c(mongod: Mongod, played: str) -> None:
    uri = mongod.connection_string
    with spawn("status", played, "--watch", "--json", "--interval_s", "0.1", uri=uri) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["run"] == played
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
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
        with pymongo.MongoClient(uri, serverSelectionTimeoutMS=60_000) as client:
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
    assert "mongod exited with status -9" in err


def test_mongod_without_a_binary_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONGOD", str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["mongod", "--folder", str(tmp_path / "db")])
    assert (result.exit_code, "not an executable file" in result.stderr) == (2, True)
