"""The launcher's supervisor with real processes: crashes of a child and of the launcher."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shared.errors import ConfigError
from tandem.launch.children import RESTARTS, STAGES, ChildDied, Children, Program
from tandem.launch.lock import RunLock
from tests.system.processes import launched

ROOT = Path(__file__).parents[2]
SLEEPER = "import time\ntime.sleep(600)"
STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(600)"
RUNAWAY = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
print("ready")
time.sleep(600)
"""
WITH_LAST_WORDS = """
import signal, sys, time
def end(*_):
    print(f"ended at {time.monotonic()}")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready")
time.sleep(600)
"""
LAUNCHER = """
import sys, time
from pathlib import Path
from tandem.launch.children import Children, Program
from tandem.launch.lock import RunLock
from shared.processes.mongod import Mongod
folder, run = Path(sys.argv[1]), sys.argv[2]
with RunLock(folder / "launch.lock") as lock, Children(run, Path.cwd(), lock.fd) as children:
    children.start_mongod(Mongod(folder / "mongodb"))
    children.start(Program("trainer", "trainer", [sys.executable, "-c", sys.argv[3]], folder / "trainer.log"))
    children.start(Program("sampler", "sampler", [sys.executable, "-c", sys.argv[4]], folder / "sampler.log"))
    print("up", flush=True)
    time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_until(true: object, limit_s: float = 100.0) -> None:
    assert callable(true)
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    return f"t{os.getpid()}-{abs(hash(request.node.name)) % 10**6}"


async def test_a_dead_child_is_named_with_the_end_of_its_log(tmp_path: Path, run: str) -> None:
    with Children(run, ROOT) as children:
        children.start(Program("engine 0", "keeper", python(SLEEPER), tmp_path / "engine.log"))
        code = "for i in range(40): print('line', i)\nraise SystemExit('no weights in here')"
        children.start(Program("trainer 0", "trainer", python(code), tmp_path / "trainer.log"))
        with pytest.raises(ChildDied) as caught:
            await asyncio.wait_for(children.watch(), 100)
    text = str(caught.value)
    assert "trainer 0" in text
    assert "ended with status 1" in text
    assert str(tmp_path / "trainer.log") in text
    assert "no weights in here" in text
    assert "line 39" in text
    assert "line 3\n" not in text
    assert launched(run) == []


def test_only_this_start_of_a_child_is_quoted_from_its_log(tmp_path: Path, run: str) -> None:
    (tmp_path / "log").write_text("from yesterday\n")
    with Children(run, ROOT) as children:
        child = children.start(Program("tools", "tools", python("print('from today')"), tmp_path / "log"))
        child.process.wait(100)
        assert "from today" in child.crash_report()
        assert "from yesterday" not in child.crash_report()


async def test_a_trainer_may_end_itself_but_not_with_an_error(tmp_path: Path, run: str) -> None:
    with Children(run, ROOT) as children:
        child = children.start(Program("t", "trainer", python("pass"), tmp_path / "log", ends_itself=True))
        await asyncio.wait_for(children.wait_exit(child), 100)
        children.check()
        bad = children.start(Program("t", "trainer", python("raise SystemExit(3)"), tmp_path / "log", ends_itself=True))
        with pytest.raises(ChildDied, match="ended with status 3"):
            await asyncio.wait_for(children.wait_exit(bad), 100)
        children.stop(("trainer",))
        with pytest.raises(ChildDied, match="ended with status 3"):
            children.check()  # a stop afterwards makes no failure a success


async def test_a_crashed_sampler_is_restarted_with_its_log_and_mark_and_reported(tmp_path: Path, run: str) -> None:
    told: list[str] = []
    with Children(run, ROOT) as children:
        children.note = told.append
        first = children.start(
            Program("sampler 0", "sampler", python(WITH_LAST_WORDS), tmp_path / "log", {"OWN": "kept"})
        )
        watching = asyncio.create_task(children.watch())
        first.process.kill()
        await asyncio.to_thread(wait_until, lambda: children.children != [first] and "ready" in first.log_text())
        (second,) = children.children
        assert not watching.done(), "the last sampler may die: it comes again"
        assert (second.name, second.restarts) == ("sampler 0", 1)
        assert launched(run) == [second.process.pid]
        environ = Path(f"/proc/{second.process.pid}/environ")
        assert b"OWN=kept" in await asyncio.to_thread(environ.read_bytes)
        assert children.losses() == []
        watching.cancel()
    assert told[0] == "sampler 0 was killed by SIGKILL: starting it again in 1 s (1 of at most 5)"
    assert launched(run) == []


async def test_a_sampler_that_crashes_repeatedly_is_lost_after_a_bounded_number_of_starts(
    tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.launch.children.FIRST_PAUSE_S", 0.01)
    told: list[str] = []
    with Children(run, ROOT) as children:
        children.note = told.append
        children.start(
            Program("sampler 0", "sampler", python("print('started')\nraise SystemExit(1)"), tmp_path / "0.log")
        )
        with pytest.raises(ChildDied, match=r"sampler 0 .* ended with status 1"):
            await asyncio.wait_for(children.watch(), 100)
    assert (tmp_path / "0.log").read_text().count("started") == 1 + RESTARTS
    assert len(told) == RESTARTS


async def test_losing_a_sampler_is_reported_once_and_losing_the_last_ends_the_run(tmp_path: Path, run: str) -> None:
    refuse = python("import os, sys\nos.read(0, 1)\nsys.exit(2)")  # as where the configuration is wrong
    with Children(run, ROOT) as children:
        first = children.start(Program("sampler 0", "sampler", refuse, tmp_path / "0.log"))
        second = children.start(Program("sampler 1", "sampler", python(SLEEPER), tmp_path / "1.log"))
        first.process.wait(100)
        children.revive()
        children.check()
        assert [child.name for child in children.losses()] == ["sampler 0"]
        assert children.losses() == []
        second.restarts = RESTARTS
        second.process.kill()
        second.process.wait(100)
        children.revive()
        with pytest.raises(ChildDied, match=r"sampler 0 .* ended with status 2"):
            children.check()


def test_stopping_reaches_descendants_in_other_sessions_and_those_that_ignore_sigterm(tmp_path: Path, run: str) -> None:
    bystander = subprocess.Popen(python(SLEEPER))
    try:
        with Children(run, ROOT) as children:
            child = children.start(Program("trainer 0", "trainer", python(RUNAWAY), tmp_path / "log"))
            wait_until(lambda: child.log_text().count("ready") == 2)
            assert len(launched(run)) == 2
        assert launched(run) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(60)


def test_children_stop_in_order_consumers_first(tmp_path: Path, run: str) -> None:
    kinds = ["tools", "keeper", "sampler", "trainer"]
    with Children(run, ROOT) as children:
        for kind in kinds:
            children.start(Program(kind, kind, python(WITH_LAST_WORDS), tmp_path / kind))
        wait_until(lambda: all("ready" in child.log_text() for child in children.children))
    ended = {kind: float((tmp_path / kind).read_text().split()[-1]) for kind in kinds}
    assert sorted(kinds, key=ended.__getitem__) == sorted(kinds, key=STAGES.__getitem__)


def test_force_ends_the_grace(tmp_path: Path, run: str) -> None:
    with Children(run, ROOT) as children:
        child = children.start(Program("trainer 0", "trainer", python(STUBBORN), tmp_path / "log"))
        wait_until(lambda: "ready" in child.log_text())
        children.force = True
        started = time.monotonic()
        children.stop()
    assert time.monotonic() - started < 35  # the trainer's grace is 40 s


async def test_a_killed_reaper_stops_the_run(tmp_path: Path, run: str) -> None:
    with Children(run, ROOT) as children:
        children.start(Program("tools", "tools", python(SLEEPER), tmp_path / "log"))
        reaper = children._reaper
        assert reaper is not None
        reaper.kill()
        with pytest.raises(ChildDied, match="reaper"):
            await asyncio.wait_for(children.watch(), 100)


def start_launcher(folder: Path, run: str, trainer: str, sampler: str) -> "subprocess.Popen[bytes]":
    command = [*python(LAUNCHER), str(folder), run, trainer, sampler]
    launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"up\n"
    return launcher


def test_kill_9_of_the_launcher_leaves_no_child_behind_the_database_included(tmp_path: Path, run: str) -> None:
    launcher = start_launcher(tmp_path, run, WITH_LAST_WORDS, RUNAWAY)
    wait_until(lambda: "ready" in (tmp_path / "trainer.log").read_text())
    wait_until(lambda: (tmp_path / "sampler.log").read_text().count("ready") == 2)
    assert len(launched(run)) == 4  # mongod, trainer, sampler, and what the sampler started
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(60)
    wait_until(lambda: launched(run) == [])
    assert "ended at" in (tmp_path / "trainer.log").read_text()  # it was asked, not killed
    assert "now exiting" in (tmp_path / "mongodb" / "mongod.log").read_text().lower()
    assert launcher.stdout is not None
    launcher.stdout.close()


def test_a_second_launcher_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "launch.lock"
    with RunLock(path), pytest.raises(ConfigError, match=f"pid {os.getpid()}"), RunLock(path):
        pass
    with RunLock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_after_a_kill_the_next_launcher_waits_until_all_is_stopped(tmp_path: Path, run: str) -> None:
    launcher = start_launcher(tmp_path, run, SLEEPER, WITH_LAST_WORDS)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(60)
    with RunLock(tmp_path / "launch.lock"):
        assert launched(run) == []
    assert launcher.stdout is not None
    launcher.stdout.close()
