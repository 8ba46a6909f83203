"""A resume continues as if nothing had happened, on any number of ranks, and a kill costs no checkpoint that was there."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.errors import ConfigError, DataError
from tests.full_disk import room_for
from tests.trainer.builders import relative_difference
from tests.trainer.conftest import ROOT, Launch
from tests.trainer.launched import LAST_STEP, SAVED_STEP, exact_learner, full_parameters, take_steps
from trainer.checkpoints import checkpoint, folders, restore
from trainer.process.parallel import Parallel
from trainer.run.start import resume
from trainer.settings.config import TrainerConfig

KILLS = 10  # every other one while a save is seen; of the rest, 4 in 5 come in the middle of one


def draws() -> list[float]:
    """One number from every random generator that a checkpoint restores."""
    return [float(torch.rand(1)), float(np.random.rand()), random.random()]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_by_bit(
    tmp_path: Path, model_directory: Path, alone: Parallel, asynchronous: bool
) -> None:
    learner = exact_learner(model_directory, alone)
    take_steps(learner, SAVED_STEP, 30, alone)
    torch.manual_seed(5)
    draws()
    checkpoints = checkpoint.Checkpoints(tmp_path, alone, asynchronous=asynchronous)
    checkpoints.save(learner, {"seen": ["a", 1]})
    expected_metrics, expected_draws = take_steps(learner, LAST_STEP, 30, alone), draws()
    draws()
    checkpoints.settle(wait=True)

    resumed = exact_learner(model_directory, alone)
    path = folders.latest(tmp_path)
    assert path
    assert restore.load(resumed, path, alone) == restore.Resumed(SAVED_STEP, {"seen": ["a", 1]})
    metrics = take_steps(resumed, LAST_STEP, 30, alone)
    assert draws() == expected_draws
    assert all(torch.equal(t, full_parameters(learner)[name]) for name, t in full_parameters(resumed).items())
    assert {**metrics, "learner/step_s": 0} == {**expected_metrics, "learner/step_s": 0}


def test_a_checkpoint_of_two_processes_continues_on_one(
    two_processes: Launch, model_directory: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone)
    path = folders.latest(two_processes.out / "checkpoints")
    assert path
    assert sorted(p.name for p in path.glob("rng-*")) == ["rng-0.pt", "rng-1.pt"]
    assert restore.load(learner, path, alone).step == SAVED_STEP
    take_steps(learner, LAST_STEP, 30, alone)
    two = torch.load(two_processes.out / "result.pt", weights_only=True)
    assert relative_difference(full_parameters(learner), two["parameters"]) < 1e-9


def test_every_rank_of_a_larger_start_has_random_numbers_of_its_own(
    two_processes: Launch, model_directory: Path, alone: Parallel
) -> None:
    path = folders.latest(two_processes.out / "checkpoints")
    assert path
    ranks = [dataclasses.replace(alone, data=dataclasses.replace(alone.data, rank=rank)) for rank in range(4)]

    def drawn() -> list[list[float]]:
        found = []
        for rank in ranks:
            restore.load(exact_learner(model_directory, alone), path, rank)
            found.append(draws())
        return found

    first = drawn()
    for of_one_generator in zip(*first, strict=True):
        assert len(set(of_one_generator)) == 4
    assert drawn() == first


def test_only_the_last_checkpoints_are_kept_and_only_complete_ones_count(
    tmp_path: Path, model_directory: Path, alone: Parallel
) -> None:
    assert folders.latest(tmp_path / "nothing") is None
    learner = exact_learner(model_directory, alone)
    leftover = tmp_path / "step-000099.tmp-1-abc"
    leftover.mkdir()
    (leftover / restore.STATE_FILE).write_text('{"step": 99')
    assert folders.latest(tmp_path) is None
    checkpoints = checkpoint.Checkpoints(tmp_path, alone, keep_last=2, keep_also=lambda: [1])
    for step in (1, 2, 3, 4):
        learner.steps_done = step
        checkpoints.save(learner, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000003", "step-000004"]
    written = (tmp_path / "step-000004" / restore.STATE_FILE).stat().st_mtime_ns
    checkpoints.save(learner, {})
    assert (tmp_path / "step-000004" / restore.STATE_FILE).stat().st_mtime_ns == written
    with pytest.raises(ConfigError, match="keep_last is 0"):
        checkpoint.Checkpoints(tmp_path, alone, keep_last=0)
    (tmp_path / "step-000003" / restore.STATE_FILE).write_text("")
    with pytest.raises(DataError, match=r"step-000003: damaged, and nothing was trained: .*state\.json: 0 bytes"):
        restore.load(learner, tmp_path / "step-000003", alone)


def test_a_checkpoint_under_way_counts_only_when_it_is_written(
    tmp_path: Path, model_directory: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone)
    checkpoints = checkpoint.Checkpoints(tmp_path, alone, asynchronous=True)
    for step in (1, 2):
        learner.steps_done = step
        checkpoints.save(learner, {})
        before = folders.latest(tmp_path)
        assert before is None or folders.step_of(before) == step - 1, "the save of a step ends the one before it"
    while checkpoints.settle() is None:
        time.sleep(0.01)
    assert folders.latest(tmp_path) == tmp_path / "step-000002"
    assert checkpoints.settle(wait=True) is None


def test_a_checkpoint_that_another_start_has_put_there_is_no_checkpoint_of_this_one(
    tmp_path: Path, model_directory: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone)
    checkpoints, others = (checkpoint.Checkpoints(tmp_path, alone) for _ in range(2))
    learner.steps_done = 1
    others.save(learner, {})
    with pytest.raises(DataError, match="step-000001 exists, written by another start of the trainer"):
        checkpoints.save(learner, {})
    with pytest.raises(DataError, match=r"step-000001 was finished by the previous trainer.*nothing was undone"):
        folders.take_over(tmp_path, 0, 2)
    folders.take_over(tmp_path, 1, 2)
    checkpoint.Checkpoints(tmp_path, alone).save(learner, {})  # what a start began with is its own


def test_a_full_disk_is_said_and_leaves_the_last_checkpoint_good(
    tmp_path: Path, model_directory: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone)
    checkpoints = checkpoint.Checkpoints(tmp_path, alone)
    learner.steps_done = 1
    checkpoints.save(learner, {})
    said = r"step \d could not be written .*step-000001 is valid; free disk space"
    for room in (0, 100, 5_000, 20_000):  # another of the files cannot be written each time
        learner.steps_done += 1
        with room_for(room), pytest.raises(DataError, match=said):
            checkpoints.save(learner, {})
        assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert restore.load(exact_learner(model_directory, alone), tmp_path / "step-000001", alone).step == 1
    checkpoints.save(learner, {})
    assert folders.latest(tmp_path) == tmp_path / "step-000005"


def test_a_checkpoint_of_another_run_or_policy_is_not_continued(
    tmp_path: Path, model_directory: Path, alone: Parallel
) -> None:
    learner = exact_learner(model_directory, alone)
    checkpoint.Checkpoints(tmp_path / "checkpoints", alone).save(learner, {"run": "one", "policy": "main"})
    given = {"db_connection_string": "given", "model_name_or_path": model_directory, "output_dir": tmp_path}
    resume(learner, TrainerConfig(run="one", **given), alone)
    for other in ({"run": "two"}, {"run": "one", "policy": "guide"}):
        with pytest.raises(
            ConfigError, match=r"step-000000 is of run one, policy main; this is run .* an output_dir of its own"
        ):
            resume(learner, TrainerConfig(**other, **given), alone)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "rng-0.pt", "state.json"])
def test_a_checkpoint_that_somebody_cut_is_named_and_not_loaded(
    tmp_path: Path, model_directory: Path, alone: Parallel, name: str
) -> None:
    learner = exact_learner(model_directory, alone)
    checkpoint.Checkpoints(tmp_path, alone).save(learner, {})
    path = tmp_path / "step-000000"
    for part in (0.5, 0.0):
        os.truncate(path / name, int((path / name).stat().st_size * part))
        with pytest.raises(DataError, match=r"step-000000: "):
            restore.load(learner, path, alone)


@pytest.mark.parametrize("name", ["__0_0.distcp", "rng-0.pt", "state.json", ".metadata"])
def test_a_checkpoint_with_one_flipped_bit_is_refused_with_its_file_and_the_one_before(
    tmp_path: Path, model_directory: Path, alone: Parallel, name: str
) -> None:
    learner = exact_learner(model_directory, alone)
    saved = checkpoint.Checkpoints(tmp_path, alone, asynchronous=True)
    saved.save(learner, {})
    learner.steps_done = 1
    saved.save(learner, {})
    saved.settle(wait=True)
    before = full_parameters(learner)
    path = tmp_path / "step-000001"
    assert restore.load(learner, path, alone).step == 1
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"step-000001: damaged.*{name}.*the checkpoint before it is .*step-000000"):
        restore.load(learner, path, alone)
    assert all(torch.equal(tensor, before[key]) for key, tensor in full_parameters(learner).items())
    assert restore.load(learner, tmp_path / "step-000000", alone).step == 0


@pytest.mark.thorough
def test_a_kill_at_any_instant_of_a_save_leaves_the_last_checkpoint_good(tmp_path: Path, model_directory: Path) -> None:
    command = [sys.executable, "-m", "tests.trainer.saving_child", str(tmp_path), str(model_directory)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    rng = random.Random(3)
    steps, unfinished = [0], 0
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin
        assert nursery.stdout
        for kill in range(KILLS):
            nursery.stdin.write("\n")
            nursery.stdin.flush()
            pid = int(nursery.stdout.readline())
            _wait_until(lambda: _newest(tmp_path) > steps[-1], f"a checkpoint after step {steps[-1]}")
            if kill % 2:
                _wait_until(lambda: any(tmp_path.glob("*.tmp-*")), "a save under way")
            else:
                time.sleep(rng.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
            assert int(nursery.stdout.readline()) == -signal.SIGKILL, "the child failed before it was killed"
            unfinished += len(list(tmp_path.glob("*.tmp-*")))
            steps.append(_newest(tmp_path))
        nursery.stdin.close()
    assert steps == sorted(set(steps)), "each child continued from the newest, which its load had to read whole"
    assert unfinished > 0, "no kill came in the middle of a save: the test proved nothing"


def _newest(root: Path) -> int:
    path = folders.latest(root)
    return 0 if path is None else folders.step_of(path)


def _wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, f"timed out after 120 s waiting for {what}"
        time.sleep(0.001)
