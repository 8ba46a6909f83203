"""A launch that serves the environments of its tasks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shared.errors import ConfigError
from tandem.launch import commands
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig
from tests.system.processes import PATIENT, launched

pytestmark = pytest.mark.timeout(900)
WORLD = """
from sampler.environments import Environment, Step

class Even(Environment):
    def start(self, index, task):
        return Step([{"role": "user", "content": f"An even number above {index}?"}])

    def interact(self, replies):
        return Step(status="completed", reward=float(len(replies[-1]["content"]) % 2))
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "worlds.py"
    path.write_text(WORLD)
    return path


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    asked = {"sampler": "environment", "query": "even"}
    lines = [{"id": f"e{n}", **asked, "metadata": {"environment": "even", "index": n}} for n in range(16)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def flags_of(*words: str) -> list[str]:
    return LaunchConfig.load(["demo", *words]).environment_flags()


def test_a_service_is_started_where_environments_are_named_and_samplers_play(world: Path, tmp_path: Path) -> None:
    assert flags_of() == []
    assert flags_of("--environments", f"{world}:Even", "--num_samplers", "0") == []
    given = ("--environments", f"even={world}:Even,other={world}:Even", "--environment_python", sys.executable)
    assert flags_of(*given) == ["--environments", given[1], "--worker_python", sys.executable, "--port", "0"]
    (file := tmp_path / "run.yml").write_text(f"environments: {{environments: ['even={world}:Even'], port: 5099}}")
    assert flags_of("--config", str(file)) == ["--config", str(file)], "its port is the section's"
    command = commands.environments(LaunchConfig.load(["demo", *given]))
    assert command[1:5] == ["-m", "sampler.environments", "--run", "demo"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--environments", "lake"), "'lake' is no environment; expected ADAPTER:NAME"),
        (("--environments", "a:b,a:b"), "'a:b' is given twice"),
        (("--environments", "a:b", "--environment_python", "/no/python"), "worker_python is /no/python, which is no"),
        (("--environment_python", sys.executable), "environment_python is given without environments"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_started(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        flags_of(*words)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_plays_its_environments_although_their_service_is_killed(run: str, world: Path, tasks: Path) -> None:
    flags = ["--train_file", str(tasks), "--environments", f"even={world}:Even", "--num_samplers", "1"]
    flags += ["--num_generations", "2", "--groups_per_step", "2", "--max_steps", "3", "--max_new_tokens", "4"]
    flags += ["--drop_zero_advantage", "false"]  # a step of equal rewards counts too
    command = [sys.executable, "-m", "tandem.launch", run, "--method", "minirl", *flags]
    told, environment = "", os.environ | PATIENT
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as launch:
        assert launch.stdout is not None
        for line in launch.stdout:
            told += line
            if "serving even at http://127.0.0.1:" in line and "SIGKILL" not in told:
                (service,) = [pid for pid in launched(run) if "sampler.environments" in psutil.Process(pid).cmdline()]
                os.kill(service, signal.SIGKILL)
    assert launch.returncode == 0, told
    assert "environments was killed by SIGKILL: starting it again" in told
    assert "trained 3 steps" in told
    assert launched(run) == []
