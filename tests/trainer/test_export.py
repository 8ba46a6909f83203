"""An exported checkpoint holds the very weights that were trained, in the form that others load."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from shared.errors import ConfigError, DataError
from tandem import app
from tests.trainer.conftest import ROOT, Launch
from tests.trainer.launched import SAVED_STEP, exact_learner, full_parameters, take_steps
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.restore import load
from trainer.export import ExportConfig, export
from trainer.process.parallel import parallel_session


def tandem(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def refused(*arguments: str) -> Result:
    """In this process: what is refused starts no other."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 2
    return done


def test_a_checkpoint_of_two_processes_is_exported_bit_by_bit(
    two_processes: Launch, model_directory: Path, tmp_path: Path
) -> None:
    run_dir, target = str(two_processes.out), tmp_path / "export"
    flags = ["--run_dir", run_dir, "--output_dir", str(target), "--model_name_or_path", str(model_directory)]
    done = tandem("export-model", "any", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{target}  (")
    with parallel_session("cpu", num_threads=1) as alone:
        learner = exact_learner(model_directory, alone)
        load(learner, two_processes.out / "checkpoints" / f"step-{SAVED_STEP:06d}", alone)
        trained = full_parameters(learner)
    written = AutoModelForCausalLM.from_pretrained(target, dtype="auto").state_dict()
    assert written.keys() == trained.keys()
    assert all(torch.equal(written[name], trained[name]) for name in trained)


def test_the_checkpoint_itself_says_what_it_was_started_from(tmp_path: Path, model_directory: Path) -> None:
    starts = {
        "good": {"model_name_or_path": str(model_directory)},
        "moved": {"model_name_or_path": "/gone"},
        "mute": {},
    }
    with parallel_session("cpu", num_threads=1) as alone:
        learner = exact_learner(model_directory, alone)
        take_steps(learner, 1, 30, alone)
        for name, accounting in starts.items():
            Checkpoints(tmp_path / name, alone).save(learner, accounting)
        expected = full_parameters(learner)
    written = _export(tmp_path / "good", tmp_path / "bf16", dtype="bfloat16")
    assert written
    assert all(torch.equal(tensor, expected[name].bfloat16()) for name, tensor in written.items())
    with pytest.raises(ConfigError, match="bf16 exists; expected a new directory"):
        _export(tmp_path / "good", tmp_path / "bf16")
    with pytest.raises(ConfigError, match="the run started from /gone, which is gone; pass --model_name_or_path"):
        _export(tmp_path / "moved", tmp_path / "other")
    with pytest.raises(DataError, match="does not say which model the run started from"):
        _export(tmp_path / "mute", tmp_path / "other")


def test_a_step_that_was_not_kept_is_named_with_those_that_were(two_processes: Launch) -> None:
    done = refused("export-model", "any", "--run_dir", str(two_processes.out), "--step", "77")
    assert f"expected the checkpoint of step 77; found those of steps: {SAVED_STEP}" in done.stderr
    done = refused("export-model", "any", "--run_dir", "/nowhere")
    assert "/nowhere/checkpoints: expected a checkpoint; found those of steps: none" in done.stderr


def _export(checkpoints: Path, target: Path, dtype: str | None = None) -> dict[str, torch.Tensor]:
    """In a process of its own, since this one has a group of processes already."""
    arguments = ["--checkpoint", str(checkpoints / "step-000001"), "--output_dir", str(target)]
    config = ExportConfig.load([*arguments, *(["--dtype", dtype] if dtype else [])])
    return load_file(export(config).path / "model.safetensors")
