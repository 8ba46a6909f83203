"""The whole trainer on a GPU: data from a real database, images, steps, checkpoints, published weights, evaluation; and it
continues. Then supervised training, and a turn replayed with the published weights.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress
from safetensors.torch import load_file

from shared.files.output_names import METRICS_FILE
from shared.processes.mongod import Mongod
from shared.weights.files import WEIGHTS_FILE
from tandem.what_if.forward_scores import inputs_of_turns
from tandem.what_if.replay import replay
from tandem.what_if.sampled import read_episode
from tandem.what_if.stored_weights import kept_weights, published_versions
from tests.shared.rounds import import_set, play
from tests.trainer.accelerated import DEVICE, STEPS_APART, on_an_accelerator
from tests.trainer.builders import relative_difference
from tests.trainer.image_episodes import FIRST, GROUPS, VisionPlayer, played, player
from tests.trainer.launched import exact_learner, full_parameters
from tests.trainer.test_evaluation import SCORES
from tests.trainer.test_image_steps import trained
from tests.trainer.test_vision_training import LOSS, TRAINED, take_vision_steps
from tests.trainer.vision_models import tiny_vision_model
from trainer.process.parallel import parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.sft import training as sft
from trainer.sft.config import SftConfig

__all__ = ["played", "player"]
pytestmark = on_an_accelerator
NATS_APART = 1e-2 if DEVICE == "cuda" else 1e-5  # nats from the log-probs that transformers computes on a CPU
SETTINGS_OF_RUN: dict[str, dict[str, Any]] = {
    "activations on the host": {
        "activation_checkpointing": True,
        "activation_offload": True,
        "keep_logprobs": True,
        "with_entropy": True,
    },
    "optimizer on the host": {
        "optimizer_offload": True,
        "async_checkpoints": False,
        "publish_mode": "delta",
        "publish_dtype": "bfloat16",
    },
    "adapters": {
        "lora_rank": 4,
        "publish_mode": "adapter",
        "loss": "GRPO",
        "kl_coefficient": 0.1,
        "drop_zero_advantage": False,
        "async_checkpoints": True,
    },
}


@pytest.mark.parametrize(("family", "part"), [("smolvlm", "language model"), ("qwen2_5_vl", "all of it")])
def test_a_vision_model_takes_the_steps_of_a_cpu(tmp_path: Path, family: str, part: str) -> None:
    tiny_vision_model(family).save_pretrained(tmp_path)
    parameters = []
    for device in ("cpu", DEVICE):
        with parallel_session(device, num_threads=1) as parallel:
            learner = exact_learner(tmp_path, parallel, LOSS, TRAINED[part])
            take_vision_steps(learner, family, 1, parallel)
            parameters.append({name: tensor.cpu() for name, tensor in full_parameters(learner).items()})
    assert relative_difference(parameters[1], parameters[0]) < STEPS_APART


@pytest.mark.parametrize("player", ["smolvlm"], indirect=True)
@pytest.mark.parametrize("fields", SETTINGS_OF_RUN.values(), ids=SETTINGS_OF_RUN.keys())
def test_a_run_is_trained_saved_published_evaluated_and_continued(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path, fields: dict[str, Any]
) -> None:
    bridge(import_set(bridge.store))
    settings = {"device": "auto", "groups_per_step": 1, "save_steps": 1, "eval_steps": 2, "keep_versions": 4, **fields}
    out = trained(played, mongod, tmp_path, **settings)
    first, second = (json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines())
    assert first["data/images"] > 0
    assert first["loss/k3_mean"] < NATS_APART**2, "the data is of these weights"
    assert first["learner/grad_norm"] > 0
    assert second["loss/loss"] == second["loss/loss"]
    assert bridge(bridge.store.evaluation.open_versions("main")) == [0, 2]
    bridge(play(bridge.store, SCORES, 0))
    trained(played, mongod, tmp_path, max_steps=3, **settings)
    *_, last = lines = [json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert last["eval/pass_at_1"] == 0.5
    (newest,) = sorted((out / "versions").iterdir())[-1:]
    if "publish_mode" not in fields:
        before, after = (load_file(folder / WEIGHTS_FILE) for folder in (played.folder, newest))
        assert before.keys() == after.keys()
        assert any(not torch.equal(before[name], after[name]) for name in before)
        assert all(bool(tensor.isfinite().all()) for tensor in after.values())


@pytest.mark.parametrize("player", ["qwen2_5_vl"], indirect=True)
def test_a_turn_is_replayed_with_the_weights_that_played_it(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path
) -> None:
    out = trained(played, mongod, tmp_path, device="auto", max_steps=1)
    episode = bridge(read_episode(bridge.store, FIRST))
    published = bridge(published_versions(bridge.store, "main"))
    inputs = bridge(inputs_of_turns(bridge.store, episode.turns, published))
    with parallel_session(DEVICE, 1), kept_weights(published, out, DEVICE) as weights:
        result = replay(episode, inputs, weights, DEVICE, Progress(disable=True))
    assert len(result.turns) == len(episode.turns)
    for turn in result.turns:
        assert np.abs(turn.recomputed - turn.sampled.logprobs).max() < 10 * NATS_APART


def test_records_with_images_are_imitated(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path
) -> None:
    given = {"model_name_or_path": played.folder, "run": bridge.store.run}
    losses = []
    for device in ("cpu", DEVICE):
        config = SftConfig(
            **given, db_connection_string=mongod.connection_string, output_dir=tmp_path / device, max_steps=1,
            samples_per_step=2 * GROUPS, min_score=0, report_to=["none"],
        )  # fmt: skip
        with parallel_session(device, num_threads=1) as parallel:
            sft.train(config, parallel)
        (line,) = [json.loads(line) for line in (tmp_path / device / METRICS_FILE).read_text().splitlines()]
        losses.append(line["loss/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=NATS_APART)
