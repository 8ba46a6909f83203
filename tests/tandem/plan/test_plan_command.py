"""`tandem plan` as a program: what it prints is a configuration that `tandem run` takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tandem.launch.policies import load_policies
from tests.conftest import ROOT


def plan(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tandem.plan", "planned", *words],
        capture_output=True, text=True, timeout=120, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip


def test_it_prints_settings_that_a_run_takes_and_keeps_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = plan("--groups_per_step", "3", "--max_new_tokens", "7", "--max_turns", "2", "--num_generations", "4")
    assert (done.returncode, done.stderr) == (0, "")
    said = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("# ")}
    assert {"machine", "model", "speed", "as", "prompts", "proposed", "memory"} == set(said)
    assert "3 groups x 4 = 12 episodes of at most 14 sampled tokens" in said["as"]
    assert f"{len(os.sched_getaffinity(0))} cores" in said["machine"]
    settings = yaml.safe_load(done.stdout)
    assert settings["trainer"]["groups_per_step"] == 3
    assert settings["sampler"]["max_new_tokens"] == 7
    (tmp_path / "planned.yml").write_text(done.stdout, encoding="utf-8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (config,) = load_policies(["planned", "--config", str(tmp_path / "planned.yml")])
    assert (config.num_generations, config.trainer_settings.get("groups_per_step", int)) == (4, 3)
    assert not (ROOT / "output" / "planned").exists()


def test_a_configuration_that_is_given_is_completed_and_not_replaced(tmp_path: Path) -> None:
    given = tmp_path / "given.yml"
    given.write_text(
        "launch: {num_generations: 4}\n"
        "trainer: {loss: MINIRL, optimizer: {learning_rate: 0.5, warmup_steps: 7}}\n"
        "sampler: {advantage: mean, max_turns: 3}\n"
        "keeper: {drain_s: 9}\n",
        encoding="utf-8",
    )
    done = plan("--config", str(given), "--warmup_steps", "8", "--drain_s", "5")
    assert (done.returncode, done.stderr) == (0, "")
    settings = yaml.safe_load(done.stdout)
    assert settings["trainer"]["loss"] == "MINIRL"
    assert settings["trainer"]["optimizer"] == {"learning_rate": 0.5, "warmup_steps": 8}
    assert not {"learning_rate", "warmup_steps"} & settings["trainer"].keys()
    assert settings["trainer"]["groups_per_step"] in (2, 4, 8)
    assert (settings["sampler"]["advantage"], settings["sampler"]["max_turns"]) == ("mean", 3)
    assert settings["launch"]["num_generations"] == 4
    assert settings["keeper"] == {"drain_s": 5}


def test_a_wrong_option_is_refused() -> None:
    done = plan("--max_turnz", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "max_turns" in done.stderr
