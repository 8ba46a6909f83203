"""Runs `lone_tools_cases.py` in a process of its own: the cases fork, and a fork of one with threads may wait without end."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

CASES = Path(__file__).with_name("lone_tools_cases.py")


def test_the_cases_of_lone_tools_pass_in_a_process_without_threads() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
