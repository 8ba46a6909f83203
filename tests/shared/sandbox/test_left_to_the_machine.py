"""What the machine does by itself to a sandbox: it kills where memory lacks, and cleans temporary folders."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.sandbox import containers
from shared.sandbox.folders import LOCK_NAME
from shared.sandbox.launch import SandboxLaunch
from shared.sandbox.watch import Bounds, kept_by_the_kernel

BOUNDS = Bounds(cpu_s=60, memory_mb=100, processes=10, folder_mb=100, lifetime_s=60)
OOM_V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"
SWAP_TOO = "memory.memsw.max_usage_in_bytes"
TAKES = """
import asyncio, sys
from pathlib import Path
from shared.sandbox.folders import own_state_folder
print(asyncio.run(own_state_folder(Path(sys.argv[1])))[0].name, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("counts", "is_ours"),
    [
        ({"memory.oom_control": OOM_V1, "memory.failcnt": "7\n"}, True),
        ({"memory.oom_control": OOM_V1, "memory.failcnt": "0\n", SWAP_TOO: "104800000\n"}, True),
        ({"memory.oom_control": OOM_V1, "memory.failcnt": "0\n", SWAP_TOO: "60000000\n"}, False),
        ({"memory.oom_control": OOM_V1.replace("1", "0"), "memory.failcnt": "7\n"}, False),
        ({"memory.events": "low 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n"}, True),
        ({"memory.events": "low 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n"}, False),
        ({"memory.events": "max 9\noom 1\noom_kill 0\n"}, False),
        ({}, False),
    ],
)
def test_a_process_that_the_machine_killed_for_its_memory_exceeded_no_limit(
    tmp_path: Path, counts: dict[str, str], is_ours: bool
) -> None:
    for name, text in counts.items():
        (tmp_path / name).write_text(text)
    found = kept_by_the_kernel([str(tmp_path)], BOUNDS, signal.SIGKILL.value)
    assert (found or "").startswith("memory_mb: ") is is_ours


def test_a_limit_of_processes_is_told(tmp_path: Path) -> None:
    (tmp_path / "pids.events").write_text("max 2\n")
    assert str(kept_by_the_kernel([str(tmp_path)], BOUNDS, 1 << 8)).startswith("processes: ")


def test_a_cleaner_of_temporary_files_frees_no_state_folder(tmp_path: Path) -> None:
    """systemd-tmpfiles removes old files, and leaves alone what is below a locked folder."""
    command = [sys.executable, "-c", TAKES, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "0\n"
            held = subprocess.run(["flock", "--nonblock", str(tmp_path / "0"), "true"], check=False, timeout=60)
            assert held.returncode == 1, "the folder itself is locked"
            (tmp_path / "0" / LOCK_NAME).unlink()
            second = subprocess.run(command, input="", capture_output=True, text=True, check=True, timeout=60)
            assert second.stdout == "1\n"
        finally:
            first.kill()


def test_a_container_has_its_own_home_and_no_value_of_a_variable_is_an_argument(tmp_path: Path) -> None:
    launch = SandboxLaunch(command=("true",), folder=tmp_path, environment={"KEY": "s3cret"})
    words = containers.run_command(launch, "name", None, [])
    given = [word for option, word in itertools.pairwise(words) if option == "--env"]
    assert f"HOME={tmp_path}" in given
    assert "KEY" in given
    assert not any("s3cret" in word for word in words)
