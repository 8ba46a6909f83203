"""The whole trainer on a GPU: data from a real database, images, steps, checkpoints, published weights; and it continues."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shared.files.output_names import METRICS_FILE
from shared.processes.mongod import Mongod
from tests.trainer.accelerated import DEVICE, on_an_accelerator
from tests.trainer.builders import relative_difference
from tests.trainer.image_episodes import VisionPlayer, played, player
from tests.trainer.launched import exact_learner, full_parameters
from tests.trainer.test_image_steps import trained
from tests.trainer.test_vision_training import LOSS, TRAINED, take_vision_steps
from tests.trainer.vision_models import tiny_vision_model
from trainer.process.parallel import parallel_session
from trainer.process.store_bridge import StoreBridge

__all__ = ["played", "player"]
pytestmark = on_an_accelerator
EXACT = 1e-6 if DEVICE == "cuda" else 1e-9  # of a GPU that adds in no fixed order, of the CPU's own numbers
FLOAT32 = 1e-2 if DEVICE == "cuda" else 1e-5


@pytest.mark.parametrize(("family", "part"), [("smolvlm", "language model"), ("qwen2_5_vl", "all of it")])
def test_a_vision_model_takes_the_steps_of_a_cpu(tmp_path: Path, family: str, part: str) -> None:
    tiny_vision_model(family).save_pretrained(tmp_path)
    parameters = []
    for device in ("cpu", DEVICE):
        with parallel_session(device, num_threads=1) as parallel:
            learner = exact_learner(tmp_path, parallel, LOSS, TRAINED[part])
            take_vision_steps(learner, family, 1, parallel)
            parameters.append({name: tensor.cpu() for name, tensor in full_parameters(learner).items()})
    assert relative_difference(parameters[1], parameters[0]) < EXACT


@pytest.mark.parametrize("player", ["smolvlm"], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [
        {"activation_checkpointing": True, "activation_offload": True, "keep_logprobs": True, "with_entropy": True},
        {"optimizer_offload": True, "async_checkpoints": False, "publish_mode": "delta", "publish_dtype": "bfloat16"},
    ],
    ids=["activations on the host", "optimizer on the host"],
)
def test_a_run_is_trained_saved_published_and_continued(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path, fields: dict[str, Any]
) -> None:
    out = trained(played, mongod, tmp_path, device="auto", groups_per_step=1, save_steps=1, keep_versions=4, **fields)
    first, second = (json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines())
    assert first["data/images"] > 0
    assert first["loss/k3_mean"] < FLOAT32**2, "the data is of these weights"
    assert first["learner/grad_norm"] > 0
    assert second["loss/loss"] == second["loss/loss"]
    trained(
        played, mongod, tmp_path, device="auto", groups_per_step=1, save_steps=1, keep_versions=4, max_steps=3, **fields
    )
    steps = [json.loads(line)["step"] for line in (out / METRICS_FILE).read_text().splitlines()]
    assert steps == [1, 2, 3]
    (newest,) = sorted((out / "versions").iterdir())[-1:]
    if "publish_mode" not in fields:
        before, after = (load_file(folder / "model.safetensors") for folder in (played.folder, newest))
        assert before.keys() == after.keys()
        assert any(not torch.equal(before[name], after[name]) for name in before)
        assert all(bool(tensor.isfinite().all()) for tensor in after.values())
