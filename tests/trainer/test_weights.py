"""A written directory loads in transformers as the model that was trained, and a damaged one is told from a good one."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from shared.errors import DataError
from shared.weights.files import manifest_of, verify_files
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.conftest import Launch
from tests.trainer.launched import exact_learner, full_parameters, take_steps
from trainer.process.parallel import Parallel
from trainer.publishing.weights import write_weights


@pytest.mark.parametrize("tied", [True, False])
def test_a_written_model_loads_and_computes_the_same(tmp_path: Path, alone: Parallel, tied: bool) -> None:
    source = tmp_path / "source"
    tiny_model(tied=tied).save_pretrained(source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    learner = exact_learner(source, alone)
    take_steps(learner, 2, 30, alone)
    written = write_weights(learner.causal_lm, source, tmp_path / "v2", alone)

    loaded = AutoModelForCausalLM.from_pretrained(written.path, dtype=torch.float64)
    expected = full_parameters(learner)
    found = {name: tensor for name, tensor in loaded.state_dict().items() if name in expected}
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    with safe_open(written.path / "model.safetensors", framework="pt") as file:
        assert ("lm_head.weight" in file.keys()) is not tied  # noqa: SIM118  # safe_open is no dict
    assert (written.path / "chat_template.jinja").read_text() == "{{ messages }}"
    assert written.manifest == manifest_of(written.path)
    assert written.total_bytes == sum(path.stat().st_size for path in written.path.iterdir())
    with pytest.raises(FileExistsError, match="a written directory is never changed"):
        write_weights(learner.causal_lm, source, tmp_path / "v2", alone)


def test_two_processes_write_the_weights_of_both(two_processes: Launch) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(two_processes.out / "weights", dtype=torch.float64)
    expected = torch.load(two_processes.out / "result.pt", weights_only=True)["parameters"]
    found = {name: tensor for name, tensor in loaded.state_dict().items() if name in expected}
    assert relative_difference(found, expected) == 0


def test_weights_may_be_written_in_another_type(tmp_path: Path, model_directory: Path, alone: Parallel) -> None:
    learner = exact_learner(model_directory, alone)
    written = write_weights(learner.causal_lm, model_directory, tmp_path / "v1", alone, dtype="bfloat16")
    loaded = AutoModelForCausalLM.from_pretrained(written.path, dtype="auto")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in learner.lm.parameters()} == {torch.float64}


def test_an_engine_of_another_user_may_read_what_is_written(
    tmp_path: Path, model_directory: Path, alone: Parallel
) -> None:
    written = write_weights(exact_learner(model_directory, alone).causal_lm, model_directory, tmp_path / "v1", alone)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [written.path, *written.path.iterdir()]}
    assert modes.pop("v1") == 0o755
    assert set(modes.values()) == {0o644}


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path, model_directory: Path, alone: Parallel) -> None:
    leftover = tmp_path / "v1.tmp-abcdef"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    learner = exact_learner(model_directory, alone)
    write_weights(learner.causal_lm, model_directory, tmp_path / "v1", alone)
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_a_damaged_copy_is_named_with_what_was_expected(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    manifest = manifest_of(tmp_path)
    verify_files(tmp_path, manifest)
    weights = tmp_path / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(b"X" + good[1:])
    with pytest.raises(
        DataError, match=rf"model\.safetensors: sha256 is \w+; expected {manifest[weights.name]['sha256']}"
    ):
        verify_files(tmp_path, manifest)
    weights.write_bytes(good[:-1])
    with pytest.raises(DataError, match=r"model\.safetensors: 1699 bytes; expected 1700"):
        verify_files(tmp_path, manifest)
    weights.unlink()
    with pytest.raises(DataError, match=r"model\.safetensors: missing; expected 1700 bytes"):
        verify_files(tmp_path, manifest)
