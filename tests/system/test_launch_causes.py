"""The cause of a launch's end is one line, whichever child dies first; clients of a dead database are not waited for."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from pymongo.errors import PyMongoError

from shared.processes.mongod import Mongod
from tandem.launch.cause import cause_of, database_error
from tandem.launch.children import STAGES, ChildDied, Children, Program
from tests.system.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(600)"
FAILING = "class EngineError(Exception): pass\nraise EngineError('out of memory: 3 of 2 GB')"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(connection_string: str) -> None:
    with pymongo.MongoClient[dict[str, object]](connection_string, serverSelectionTimeoutMS=2000) as client:
        while True:
            client["t"]["t"].insert_many([{"text": os.urandom(1 << 16)} for _ in range(32)])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--freeze=nothing.*", "nothing.*"),
        pytest.param("--tp_size=2", "tp_size is 2, but 1 processes came up", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.thorough
def test_a_trainer_that_fails_at_its_start_fails_the_launch_with_its_cause_as_the_last_line(
    mongod: Mongod, run: str, flag: str, said: str
) -> None:
    """No engine, no sampler and no evaluation: nothing else of the run could be the reason."""
    alone = {"DB_CONNECTION_STRING": mongod.connection_string, "ENGINE": "none", "NUM_SAMPLERS": "0", "EVAL_FILE": ""}
    command = [sys.executable, "-m", "tandem.launch", run, "--config", "assets/example/minirl.yml", flag]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | alone, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    with pymongo.MongoClient[dict[str, object]](mongod.connection_string) as client:
        client.drop_database(run)
    assert done.returncode == 1, done.stdout
    assert "trained 0 steps" not in done.stdout
    last = done.stdout.rstrip("\n").splitlines()[-1]
    assert last.startswith("cause: trainer 0 (pid ")
    assert said in last


async def test_a_database_on_a_full_disk_is_the_cause_and_its_clients_are_stopped_at_once(
    small_disk: Path, tmp_path: Path
) -> None:
    server = Mongod(small_disk / "mongodb")
    with Children("full", ROOT) as children:
        children.start_mongod(server)
        log = tmp_path / "sampler.log"
        children.start(Program("sampler 0", "sampler", [sys.executable, "-c", STUBBORN], log))
        failing = [sys.executable, "-c", FAILING]
        trainer = children.start(Program("trainer 0", "trainer", failing, tmp_path / "trainer.log", ends_itself=True))
        with pytest.raises(PyMongoError):
            await asyncio.to_thread(fill, server.connection_string)
        (mongod,) = children.of_kind("mongod")
        await asyncio.to_thread(mongod.process.wait, PATIENCE_S)
        await asyncio.to_thread(trainer.process.wait, PATIENCE_S)
        with pytest.raises(ChildDied, match="mongod"):
            children.check()
        cause = cause_of(children.children, small_disk)
        assert cause is not None
        assert cause.startswith(f"mongod (pid {mongod.process.pid}) ")
        assert "No space left on device" in cause
        assert f"the disk of {small_disk} is full" in cause
        assert "start the same command again" in cause
        began = time.monotonic()
        await asyncio.to_thread(children.stop)
        assert time.monotonic() - began < STAGES["sampler"][1], "a sampler of a dead database is not waited for"


@pytest.mark.parametrize("kind", ["keeper", "trainer", "tools", "environments"])
async def test_the_first_child_that_died_is_the_cause_with_what_it_raised(kind: str, tmp_path: Path) -> None:
    with Children("causes", ROOT) as children:
        sleeping = [sys.executable, "-c", "import time\ntime.sleep(600)"]
        children.start(Program("sampler 0", "sampler", sleeping, tmp_path / "sampler.log"))
        died = children.start(Program(f"{kind} 0", kind, [sys.executable, "-c", FAILING], tmp_path / "died.log"))
        assert cause_of([], tmp_path) is None
        await asyncio.to_thread(died.process.wait, PATIENCE_S)
        cause = cause_of(children.children, tmp_path)
        assert cause is not None
        assert cause.startswith(f"{kind} 0 (pid {died.process.pid}) ended with status 1: ")
        assert cause.endswith(f"EngineError: out of memory: 3 of 2 GB; its log: {tmp_path / 'died.log'}")


def test_the_first_full_disk_in_a_databases_log_is_its_error_and_broken_lines_are_none() -> None:
    assert database_error("") == ""
    assert database_error('not json\n[1]\n{"s":"I","msg":"x"}\n{"s":"E","msg":"cut') == ""
    fatal = '{"s":"F","msg":"c","attr":7}'
    assert database_error('{"s":"E","msg":"a","attr":{"error":"b"}}\n' + fatal) == "c"
    full = '{"s":"E","msg":"WiredTiger","attr":{"message":{"msg":"pwrite","error_str":"No space left on device"}}}'
    assert database_error(f"{full}\n{fatal}") == "WiredTiger (pwrite: No space left on device)"
