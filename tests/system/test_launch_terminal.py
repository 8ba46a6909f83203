"""A launch whose terminal or reader goes away: a closed terminal ends it in order, lost output costs it nothing."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from tandem.launch.processes import Target, start_time, stop
from tests.system.processes import PATIENCE_S, PATIENT, ROOT, launched

pytestmark = pytest.mark.timeout(900)

COMMAND = (sys.executable, "-m", "tandem.launch")
CONFIG = ("--config", "assets/example/minirl.yml")


def _until(seen: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not seen():  # type: ignore[operator]  # it is there
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_closed_terminal_ends_a_launch_in_order(run: str) -> None:
    master, slave = pty.openpty()

    def lead_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*COMMAND, run, *CONFIG],
        cwd=ROOT,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | PATIENT,
        preexec_fn=lead_the_terminal,
    )
    os.close(slave)
    received = b""
    while b"tools: " not in received:
        received += os.read(master, 65_536)
    os.close(master)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGHUP
    _until(lambda: not launched(run), "everything is stopped")


@pytest.mark.thorough
def test_a_launch_goes_on_without_a_reader_and_with_an_ignored_sighup(run: str) -> None:
    process = subprocess.Popen(
        ["bash", "-c", "trap '' HUP; exec \"$@\"", "bash", *COMMAND, run, *CONFIG],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | PATIENT,
    )
    assert process.stdout is not None
    while b"MongoDB: " not in process.stdout.readline():
        assert process.poll() is None
    process.stdout.close()
    process.send_signal(signal.SIGHUP)
    log = ROOT / "logs" / f"{run}_train_0.log"
    _until(
        lambda: log.exists() or process.poll() is not None, "the trainer is started, after further lines were printed"
    )
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    _until(lambda: not launched(run), "everything is stopped")


def test_a_second_ctrl_c_is_no_grace_that_ended() -> None:
    """Its line says that the process was killed on demand, not that its 40 s were over."""
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        told: list[str] = []
        started = start_time(stubborn.pid)
        assert started is not None
        stop([Target("trainer 0", stubborn.pid, started, "", 0, 40.0)], force=lambda: True, note=told.append)
    assert told == ["stopping trainer 0", "trainer 0 is killed, as the second Ctrl-C demands"]
