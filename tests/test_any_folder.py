"""Our programs run in a folder whose own packages are named as ours, and a user's code there gets the user's packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sampler.environments.worker_process import WorkerProcess
from shared.processes.run_module import PACKAGES, command
from tandem.commands.programs import LAUNCH_OPTIONS, PROGRAMS, launched, split
from tests.surroundings import python_path

ROOT = Path(__file__).parents[1]
TANDEM = Path(sys.executable).parent / "tandem"
METRICS = "from shared.deep import factor\nfrom . import deep\nimport shared.deep\n\ndef f1(text): return len(text) * factor\n"
SCORERS = """
from sampler.own_rewards import bonus
from sampler.scorers import Score, ScoringRequest, register_scorer
from shared.metrics import f1
import helper
import json, shared


@register_scorer("own")
async def own(request: ScoringRequest) -> Score:
    return Score(float(f1("abc") + bonus))


FOUND = [f1("abc"), bonus, helper.where(), shared.NAME, ScoringRequest.__module__]
"""
WORLD = """
from sampler.environments import Environment, Step
from shared.metrics import f1


class Maze(Environment):
    def start(self, index, task):
        return Step([{"role": "user", "content": f"f1 is {f1('abc')}"}])

    def interact(self, replies):
        return Step(status="completed", reward=1.0)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, two of whose packages would stop ours if ours took them."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"NAME = 'the project: {name}'\n")
    (tmp_path / "shared" / "metrics.py").write_text(METRICS)
    (tmp_path / "shared" / "deep.py").write_text("factor = 2\n")
    (tmp_path / "sampler" / "own_rewards.py").write_text("bonus = 5\n")
    (tmp_path / "helper.py").write_text("import shared.deep\n\ndef where(): return shared.NAME\n")
    (tmp_path / "own_scorers.py").write_text(SCORERS)
    (tmp_path / "own_worlds.py").write_text(WORLD)
    return tmp_path


def run(words: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TANDEM_", "PYTHON", "DB_"))}
    if "-c" in words:  # this tree, also where another one is installed: `tests/mutants.py` tests a copy
        clean["PYTHONPATH"] = python_path(ROOT)
    return subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_program_is_a_command_that_never_imports_from_the_current_folder(project: Path, name: str) -> None:
    done = run([str(TANDEM), name, "--help"], project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_the_programs_in_the_table_are_all_that_there_are() -> None:
    """Every package of the services with a `__main__`, the launcher and the plan, and two files that are programs."""
    found = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for package in ("sampler", "trainer")
        for path in (ROOT / package).rglob("__main__.py")
    }
    assert found | {"tandem.launch", "tandem.plan", "tandem.what_if.verify", "trainer.quantize"} == {
        module for module, *_ in PROGRAMS.values()
    }


@pytest.mark.parametrize("name", ["own_scorers", "own_scorers.py"])
def test_a_users_module_gets_the_packages_of_its_project_and_ours_for_what_those_lack(project: Path, name: str) -> None:
    program = (
        "from shared.processes.run_module import search_working_directory\n"
        "from shared.user_code.loading import import_own\n"
        "search_working_directory()\n"
        f"print(import_own('scorer_modules', {name!r}).FOUND)\n"
        "import shared, sampler; print(shared.__file__, sampler.__file__)"
    )
    done = run([sys.executable, "-P", "-c", program], project)
    assert done.returncode == 0, done.stderr
    found, ours = done.stdout.splitlines()
    assert found == "[6, 5, 'the project: shared', 'the project: shared', 'sampler.core.scorers.registry']"
    assert ours == f"{ROOT / 'shared/__init__.py'} {ROOT / 'sampler/__init__.py'}"


@pytest.mark.parametrize("kind", ["own_worlds:Maze", "own_worlds.py:Maze"])
async def test_a_users_world_gets_the_packages_of_its_project(
    project: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    worker = await WorkerProcess.started("", {"maze": kind})
    try:
        answer = await worker.ask({"op": "start", "session": "1", "kind": "maze", "index": 0, "task": {}}, 200)
        assert "f1 is 6" in str(answer)
    finally:
        await worker.end()


def test_a_project_without_such_packages_is_imported_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "FOUND = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)\n"
    )
    program = (
        "import sys, builtins\nsys.path.append('.')\nfrom shared.user_code.loading import import_own\n"
        "print(import_own('x', 'plain').FOUND['__import__'] is builtins.__import__)\n"
        "print([one for one in sys.meta_path if 'OwnProject' in str(one)])"
    )
    assert run([sys.executable, "-P", "-c", program], tmp_path).stdout == "True\n[]\n"


def test_the_trainer_is_launched_by_accelerate_with_both_kinds_of_options() -> None:
    launch, own = split(["--run", "r", "--num_processes", "2", "--config=a.yml", "--machine_rank=1", "--tp_size", "2"])
    assert launch == ["--num_processes", "2", "--machine_rank=1"]
    assert own == ["--run", "r", "--config=a.yml", "--tp_size", "2"]
    words = launched("trainer", ["--run", "r"])
    assert words[2:] == [
        "trainer.launch",
        "--config_file",
        str(ROOT / "trainer/fsdp2.yml"),
        "--num_processes",
        "1",
        words[1],
        *words[8:],
    ]
    assert words[8:] == ["trainer", "--run", "r"]
    assert words[:2] == command("any")[:2]
    assert Path(words[4]).read_text() == (ROOT / "assets/fsdp2.yml").read_text()
    fields = {
        name
        for path in (ROOT / "trainer" / "settings").glob("*.py")
        for name in re.findall(r"^    (\w+): ", path.read_text(), re.MULTILINE)
    }
    assert "output_dir" in fields
    assert not {option.removeprefix("--") for option in LAUNCH_OPTIONS} & fields
