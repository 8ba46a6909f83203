"""The launcher on a machine with GPUs: `nvidia-smi` and `sglang` are programs of others, played here by scripts on PATH.

The second one notes its variables and arguments, and then is the local engine, which sleeps and wakes for real.
"""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shared.errors import ConfigError
from tandem.launch import dry_run
from tandem.launch.gpus import VISIBLE
from tandem.launch.policies import load_policies
from tests.system.processes import PATIENT, ROOT

EXAMPLE = ("--method", "minirl")
STAND_IN = f"""\
import json, os, sys
from pathlib import Path
given = sys.argv[1:]
noted = {{"visible": os.environ.get("{VISIBLE}"), "arguments": given}}
(Path(__file__).parent / f"started-{{os.getpid()}}.json").write_text(json.dumps(noted))
value = lambda name: given[given.index(name) + 1]
os.chdir({str(ROOT)!r})
local = ["-m", "sampler.engine.local", "--model-path", value("--model-path"), "--port", value("--port")]
os.execv({sys.executable!r}, [{sys.executable!r}, *local])
"""
# A shebang ends at a blank: the interpreter's path may have one.
SGLANG = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$0.py" "$@"\n'


def machine(folder: Path, gpus: int, *, sglang: bool = True) -> str:
    """The PATH of a machine with so many GPUs."""
    rows = "".join(f"echo 'GPU-{number}, 81559'\n" for number in range(gpus))
    programs = {"nvidia-smi": f"#!/bin/sh\n{rows}"} | ({"sglang": SGLANG, "sglang.py": STAND_IN} if sglang else {})
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def planned(*arguments: str) -> str:
    text = io.StringIO()
    policies = load_policies(["demo", *EXAMPLE, "--dry-run", *arguments])
    assert dry_run.show(Console(file=text, width=1000), policies) == 0
    return text.getvalue()


def visible_in(plan: str) -> list[tuple[str, str]]:
    """(process, its GPUs) in a plan."""
    found, name = [], ""
    for line in plan.splitlines():
        name = line.partition(", log ")[0] if ", log logs/" in line else name
        if f"{VISIBLE}=" in line:
            found.append((name, line.partition("=")[2]))
    return found


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(VISIBLE, raising=False)
    return monkeypatch


def test_one_gpu_is_used_by_turns_and_two_are_split(gpus: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus.setenv("PATH", machine(tmp_path, 1))
    plan = planned()
    assert visible_in(plan) == [("engine 0", "0"), ("trainer 0", "0")]
    assert "--enable-memory-saver --mem-fraction-static 0.75" in plan
    assert plan.count("--shared_device trainer-main") == 2, "of the keeper and of the trainer"
    assert "GPUs of policy main: trainer 0; engine 0 by turns with the trainer" in plan
    gpus.setenv("PATH", machine(tmp_path, 2))
    plan = planned("--mem_fraction_static", "0.6")
    assert visible_in(plan) == [("engine 0", "1"), ("trainer 0", "0")]
    assert "--mem-fraction-static 0.6" in plan
    assert "shared_device" not in plan
    assert "memory-saver" not in plan


def test_vllm_is_started_with_the_python_beside_its_program(gpus: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus.setenv("PATH", machine(tmp_path, 3))
    given = json.dumps({"main": {"trainer": [0], "engines": [[1, 2]]}})
    with pytest.raises(ConfigError, match=r"no folder on PATH has the program 'vllm' and its python.*pip install vllm"):
        load_policies(["demo", *EXAMPLE, "--engine", "vllm", "--gpus", given])
    for name in ("vllm", "python"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    flags = "--enable-lora --max-lora-rank 8"
    plan = planned("--engine", "vllm", "--gpus", given, "--mem_fraction_static", "0.6", f"--engine_flags={flags}")
    assert visible_in(plan) == [("engine 0", "1,2"), ("trainer 0", "0")]
    assert re.search(r"/python \S*run_module\.py sampler\.engine\.vllm --model-path \{model\}", plan)
    assert "--tensor-parallel-size 2" in plan
    assert "--gpu-memory-utilization 0.6" in plan
    assert "memory-saver" not in plan
    assert f" {flags}'" in plan
    with pytest.raises(ConfigError, match="ENGINE is local; expected ENGINE=sglang or vllm"):
        load_policies(["demo", *EXAMPLE, "--engine", "local", f"--engine_flags={flags}"])


def test_cuda_visible_devices_is_honoured_by_name(gpus: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus.setenv("PATH", machine(tmp_path, 4))
    gpus.setenv(VISIBLE, "3,GPU-1")
    assert visible_in(planned()) == [("engine 0", "GPU-1"), ("trainer 0", "3")]
    gpus.setenv(VISIBLE, "")
    assert visible_in(planned()) == []


def test_the_setting_places_engines_over_several_gpus(gpus: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus.setenv("PATH", machine(tmp_path, 8))
    given = {"main": {"trainer": [0, 1, 2, 3], "engines": [[4, 5], [6, 7]]}}
    plan = planned("--gpus", json.dumps(given))
    assert visible_in(plan) == [("engine 0-0", "4,5"), ("engine 0-1", "6,7"), ("trainer 0", "0,1,2,3")]
    assert plan.count("--tp-size 2") == 2
    assert "--num_processes 4" in plan
    config = tmp_path / "gpus.yml"
    config.write_text("launch: {gpus: {main: {trainer: [1], engines: [[1], [0]]}}}")
    plan = planned("--config", str(config))
    assert visible_in(plan) == [("engine 0-0", "1"), ("engine 0-1", "0"), ("trainer 0", "1")]
    assert plan.count("--shared_device") == 2, "the other engine has a GPU of its own"
    assert plan.count("--mem-fraction-static 0.75") == 1, "and all of its memory"
    plan = planned("--config", str(config), "--mem_fraction_static", "0.6")
    assert plan.count("--mem-fraction-static 0.6") == 2, "the setting is for all"


def test_several_policies_get_gpus_of_their_own(gpus: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus.setenv("PATH", machine(tmp_path, 4))
    config = tmp_path / "two.yml"
    config.write_text("launch: {policy: solver}\npolicies: {solver: {}, judge: {launch: {frozen: true}}}\n")
    plan = planned("--config", str(config))
    assert visible_in(plan) == [
        ("engine solver 0", "1"),
        ("engine judge 0-0", "2"),
        ("engine judge 0-1", "3"),
        ("trainer solver 0", "0"),
    ]


def test_engines_elsewhere_or_on_the_cpu_leave_all_gpus_to_the_trainer(
    gpus: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus.setenv("PATH", machine(tmp_path, 2))
    for arguments in (["--engine", "local"], ["--engine", "none"], ["--engine_urls", "http://h:1"]):
        plan = planned(*arguments)
        assert [found for found in visible_in(plan) if "trainer" in found[0]] == [("trainer 0", "0,1")], arguments
        assert "--num_processes 2" in plan


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", '{"main": {"trainer": [0], "engines": [[2]]}}'], r"gpus\.main\.engines\.0: GPU 2 is not there"),
        (["--gpus", '{"main": {"trainer": [0], "engine": [[1]]}}'], r"gpus\.main\.engine"),
        (["--gpus", '{"main": {"trainer": ["a"], "engines": [[1]]}}'], r"gpus\.main\.trainer"),
        (["--num_processes", "2"], r"num_processes is 2, but the trainer of policy main has 1 GPUs"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(
    gpus: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], words: str
) -> None:
    gpus.setenv("PATH", machine(tmp_path, 2))
    with pytest.raises(ConfigError, match=words):
        load_policies(["demo", *EXAMPLE, "--dry-run", *arguments])


def test_gpus_without_sglang_are_reported_unless_the_bundled_model_is_played(
    gpus: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus.setenv("PATH", machine(tmp_path, 2, sglang=False))
    with pytest.raises(ConfigError, match=r"has GPUs \(2\), and SGLang.*pip install sglang.*ENGINE_URLS.*ENGINE=local"):
        load_policies(["demo", *EXAMPLE, "--engine", "sglang"])
    assert visible_in(planned()) == [("trainer 0", "0,1")]


def test_assumed_gpus_are_for_plans(gpus: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="expected --dry-run with it"):
        load_policies(["demo", *EXAMPLE, "--assume_gpus", "8"])
    assert len(visible_in(planned("--assume_gpus", "8"))) == 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_a_launch_starts_sglang_on_its_gpu_and_trains(tmp_path: Path, count: int) -> None:
    run = f"gpus{count}x{os.getpid()}"
    path = machine(tmp_path, count)
    environment = {**os.environ, **PATIENT, "PATH": path, "EVAL_FILE": "", "NUM_SAMPLERS": "1"}
    environment.pop(VISIBLE, None)
    command = [sys.executable, "-m", "tandem.launch", run, *EXAMPLE, "--max_steps", "2", "--groups_per_step", "2"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800, check=False)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        (noted,) = [json.loads(file.read_text()) for file in tmp_path.glob("started-*.json")]
        assert noted["visible"] == str(count - 1)
        assert noted["arguments"][0] == "serve"
        assert ("--enable-memory-saver" in noted["arguments"]) is (count == 1)
        log = (ROOT / "logs" / f"{run}_engine_0.log").read_text()
        assert ("engine sleeps device=trainer-main" in log) is (count == 1)
    finally:
        subprocess.run(f"rm -rf output/{run} logs/{run}_*", shell=True, cwd=ROOT, check=True)


def test_every_command_of_the_size_table_can_be_planned(gpus: pytest.MonkeyPatch) -> None:
    """docs/run/gpus.md: each names its machine's GPUs in its first column."""
    rows = [
        line.split("|")
        for line in (ROOT / "docs" / "run" / "gpus.md").read_text().splitlines()
        if "minirl_example.sh" in line
    ]
    rows = [row for row in rows if len(row) > 3 and row[1].strip()[:1].isdigit()]
    assert len(rows) >= 5
    for row in rows:
        count = row[1].strip().rpartition(" × ")[2].split()[0]
        words = shlex.split(row[2].strip().strip("`"))
        names = [word for word in words if "=" in word and not word.startswith("-")]
        for name, value in (word.split("=", 1) for word in names):
            gpus.setenv(name, value if name != "MODEL" else "assets/example/model")
        arguments = words[len(names) + 2 :]
        plan = planned("--assume_gpus", count, *arguments)
        assert len(visible_in(plan)) >= 2, row
        for name, _ in (word.split("=", 1) for word in names):
            gpus.delenv(name)
