"""Commands end at Ctrl-C with a message and a status, otherwise with the status of their `main`."""

import subprocess
import sys
from pathlib import Path

import pytest

from shared.processes.interrupt import run_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("status", [None, 0])
def test_a_successful_command_returns(status: int | None) -> None:
    run_command(lambda: status)


def test_a_status_is_passed_on() -> None:
    with pytest.raises(SystemExit, match="3"):
        run_command(lambda: 3)


def test_ctrl_c_ends_a_command_with_a_message_instead_of_a_traceback() -> None:
    program = (
        "import signal; from shared.processes.interrupt import run_command; run_command(lambda: signal.raise_signal(2))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")
