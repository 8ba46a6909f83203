"""An agent's command in a sandbox meets its limits, and its time."""

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from sampler.core.episode.episode import play
from shared.documents.states import RecordStatus, Termination
from shared.sandbox import (
    IsolationLevel,
)
from shared.store import Store
from tests.sampler.episodes import ended
from tests.sampler.gateway.isolated import isolated, levels, script_of
from tests.sampler.gateway.test_agent_sampler import COMMAND
from tests.shared.sandbox.escapes import IMAGE
from tests.shared.sandbox.starting import needs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("temporary")]


MANY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        kept = bytearray(b"x" * (50 << 20))
        time.sleep(600)
os.wait()
raise SystemExit(1)
"""


LIMITS = {
    "memory_mb": ({"memory_mb": 100}, "kept = [bytearray(50 << 20) for _ in range(10)]"),
    "memory_mb of many": ({"memory_mb": 100}, MANY),
    "output_mb": ({"output_mb": 1}, "while True: print('x' * 10000)"),
    "processes": (
        {"processes": 8},
        "import subprocess, time\nchildren = [subprocess.Popen(['sleep', '600']) for _ in range(20)]\ntime.sleep(600)",
    ),
    "folder_mb": ({"folder_mb": 2}, "import time\nopen('large', 'wb').write(bytes(4 << 20))\ntime.sleep(600)"),
    "file_mb": ({"file_mb": 1}, "open('large', 'wb').write(bytes(4 << 20))"),
    "open_files": ({"open_files": 20}, "kept = [open('/dev/null') for _ in range(50)]"),
    "cpu_s": ({"cpu_s": 1}, "while True: pass"),
}


@levels
@pytest.mark.parametrize("name", LIMITS)
async def test_a_limit_ends_the_attempt_and_is_named(
    store: Store, tmp_path: Path, level: IsolationLevel, name: str
) -> None:
    needs(level)
    limits, code = LIMITS[name]
    async with isolated(store, level, script_of(tmp_path, code), agent_limits=limits) as sampler:
        await play(sampler)
        record, _, _ = await ended(store, sampler)
    assert (record.status, record.termination, record.score) == (RecordStatus.FAILED, Termination.AGENT_CRASHED, None)
    assert "a limit of agent_limits" in (record.error or "")
    assert name.split()[0] in (record.error or "").partition("agent_limits")[2].partition(";")[0]


@pytest.mark.skipif("DOCKER_HOST" not in os.environ, reason="DOCKER_HOST is not set; needs an engine with a test image")
@pytest.mark.parametrize("limits", [{}, {"memory_mb": 64}])
async def test_a_container_plays_and_meets_its_limits(store: Store, tmp_path: Path, limits: dict[str, int]) -> None:
    needs(IsolationLevel.CONTAINER)
    text = COMMAND + ("\nkept = bytearray(b'x') * (200 << 20)" if limits else "")
    script = script_of(tmp_path, text)
    options: dict[str, Any] = {"agent_readable": [script], "agent_folder": tmp_path / "kept", "agent_limits": limits}
    options |= {"agent_command": f"python3 {script} {{query}}", "agent_container": {"image": IMAGE}}
    async with isolated(store, "container", script, **options) as sampler:
        await play(sampler)
        record, _, dispatches = await ended(store, sampler)
    assert len(dispatches) == 1
    if not limits:
        said = (tmp_path / "kept" / record.id / "stdout.txt").read_text()
        assert said == "said <answer>4</answer>\nsecrets []\n"
    assert (tmp_path / "kept" / record.id / "stderr.txt").read_text() == ""
    assert record.score == (None if limits else 1.0)
    assert ("memory_mb, which is 64" in (record.error or "")) == bool(limits)


@levels
async def test_a_command_ends_with_its_episodes_time(store: Store, tmp_path: Path, level: IsolationLevel) -> None:
    needs(level)
    script = script_of(tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(3600)")
    others = set(psutil.Process().children())
    async with isolated(store, level, script, episode_timeout_s=5) as sampler:
        await play(sampler)
        record, _, _ = await ended(store, sampler)
    assert (record.status, record.termination) == (RecordStatus.FAILED, Termination.TIME_LIMIT)
    assert set(psutil.Process().children()) <= others
