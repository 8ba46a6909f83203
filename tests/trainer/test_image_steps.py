"""Steps on a run whose episodes have images: the log-probs of transformers, one gradient for every layout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from shared.documents.packed import unpack_floats
from shared.files.output_names import METRICS_FILE
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.copying import copy_groups
from tandem.what_if.bisect import BisectConfig, bisect
from tandem.what_if.forward_scores import inputs_of_turns
from tandem.what_if.replay import replay
from tandem.what_if.sampled import read_episode
from tandem.what_if.stored_weights import kept_weights, published_versions
from tandem.what_if.verify import VerifyConfig, verify
from tests.shared.vision_models import VISION_FAMILIES
from tests.trainer.builders import relative_difference
from tests.trainer.image_episodes import FIRST, GROUPS, VisionPlayer, begin, oldest_of, played, player, start_trainer
from tests.trainer.launched import OPTIMIZER, accumulated
from tests.trainer.layouts import Layout, run
from tests.trainer.streams import RUN, make_config, publish
from tests.trainer.vision_models import exact_float64
from trainer.data.stream import RecordStream
from trainer.loop import train
from trainer.losses import LossConfig
from trainer.modeling.vision import vision_parts
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig
from trainer.sft import training as sft
from trainer.sft.config import SftConfig
from trainer.sft.records import CHOICE_FILE
from trainer.step.opening import LearnerOptions, open_learner

__all__ = ["played", "player"]
pytestmark = pytest.mark.slow


def trained(played: VisionPlayer, mongod: Mongod, tmp_path: Path, **fields: Any) -> Path:
    """The output of a trainer that has taken two steps, by the driver itself."""
    out = tmp_path / "out"
    values = {
        "groups_per_step": 2,
        "max_steps": 2,
        "max_staleness": 4,
        "learning_rate": 1e-3,
        "report_to": ["none"],
        "device": "cpu",
        **fields,
    }
    train(
        TrainerConfig(
            run=RUN,
            db_connection_string=mongod.connection_string,
            model_name_or_path=played.folder,
            output_dir=out,
            num_threads=1,
            **values,
        )
    )
    return out


@pytest.mark.parametrize("player", ["smolvlm", "qwen2_5_vl"], indirect=True)
def test_the_trainer_computes_the_log_probs_of_transformers_and_learns(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path
) -> None:
    """The first step is on-policy: its ratios are 1."""
    out = trained(played, mongod, tmp_path)
    first, second = (json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines())
    assert first["data/images"] == 7
    assert first["loss/k3_mean"] < 1e-9
    assert second["loss/k3_mean"] > 1e-7, "the weights have moved, and the data is of those before"
    assert first["learner/grad_norm"] > 0
    (verified,) = bridge(verify(bridge.store, VerifyConfig(run=RUN, db_connection_string="given")))
    assert (verified.version, verified.records) == (0, 2 * GROUPS)
    assert verified.largest_difference < 1e-4
    (newest,) = sorted((out / "versions").iterdir())[-1:]
    before, after = (load_file(folder / "model.safetensors") for folder in (played.folder, newest))
    assert before.keys() == after.keys(), "engines load the whole model"
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert not any(name.startswith(tuple(vision_parts(played.model))) for name in moved), "the tower is frozen"


def test_changes_of_weights_contain_nothing_of_a_frozen_tower(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path
) -> None:
    """The first and the last version are complete, the second has changes."""
    out = trained(played, mongod, tmp_path, publish_mode="delta", groups_per_step=1, max_steps=3, keep_versions=4)
    lines = [json.loads(line) for line in (out / METRICS_FILE).read_text().splitlines()]
    assert [line["publish/full"] for line in lines] == [1, 0, 1]
    sizes = {name: tensor.numel() for name, tensor in load_file(played.folder / "model.safetensors").items()}
    tower = sum(size for name, size in sizes.items() if name.startswith(tuple(vision_parts(played.model))))
    assert lines[1]["publish/changed_fraction"] <= 1 - tower / sum(sizes.values())


@pytest.mark.parametrize("player", ["qwen2_5_vl"], indirect=True)
def test_a_turn_is_replayed_and_bisected_with_its_images(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path
) -> None:
    out = trained(played, mongod, tmp_path)
    progress = Progress(disable=True)
    episode = bridge(read_episode(bridge.store, FIRST))
    assert [[span.sha256 for span in turn.images] for turn in episode.turns] == played.pictures(0, 0)
    published = bridge(published_versions(bridge.store, "main"))
    inputs = bridge(inputs_of_turns(bridge.store, episode.turns, published))
    with parallel_session("cpu", 1), kept_weights(published, out, "cpu") as weights:
        result = replay(episode, inputs, weights, "cpu", progress)
    for turn in result.turns:
        assert np.abs(turn.recomputed - turn.sampled.logprobs).max() < 1e-4
    config = BisectConfig(run=RUN, db_connection_string="given", record=FIRST, turn=1, at_step=1, run_dir=out)
    with parallel_session("cpu", 1):
        bisection, _ = bisect(bridge, config, progress)
    assert np.abs(bisection.moments[0].logprobs - episode.turns[1].logprobs).max() < 1e-4
    (group,) = (group for group in bisection.groups if group.data[0].task == "main:train:0:t0")
    assert group.push != 0


def gradients_of(
    bridge: StoreBridge, parallel: Parallel, folder: Path, *, generation: int, prefix_trees: bool
) -> dict[str, Tensor]:
    """Of the first step, of all ranks together, in true float64."""
    options = LearnerOptions(dtype="float64", prefix_trees=prefix_trees)
    learner = open_learner(folder, LossConfig(), OPTIMIZER, parallel, options)
    config = make_config(model_name_or_path=folder, groups_per_step=GROUPS, max_tokens_per_row=200)
    stream = RecordStream(bridge, config, parallel, trainer_generation=generation, linear=learner.linear)
    batch = stream.next_batch(1)
    assert batch is not None, stream.end
    (minibatch,) = batch.minibatches
    assert all(row.images is not None for row in minibatch.rows)
    with exact_float64(learner.causal_lm):
        accumulated(learner, minibatch)
    grads = {name: p.grad for name, p in learner.causal_lm.named_parameters() if p.grad is not None}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}


@pytest.mark.parametrize("player", VISION_FAMILIES, indirect=True)
def test_neither_prefix_trees_nor_ranks_change_the_gradient(
    bridge: StoreBridge, played: VisionPlayer, mongod: Mongod, tmp_path: Path
) -> None:
    publish(bridge, range(1))

    def gradient(processes: int, *, prefix_trees: bool) -> dict[str, Tensor]:
        result, generation = tmp_path / "gradients.pt", start_trainer(bridge)

        def work(parallel: Parallel) -> None:
            with StoreBridge(mongod.connection_string, RUN) as own:
                found = gradients_of(own, parallel, played.folder, generation=generation, prefix_trees=prefix_trees)
            if parallel.is_main:
                torch.save(found, result)

        run(Layout(processes), work)
        found: dict[str, Tensor] = torch.load(result, weights_only=True)
        return found

    expected = gradient(1, prefix_trees=False)
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-3
    assert relative_difference(gradient(1, prefix_trees=True), expected) < 1e-9
    assert relative_difference(gradient(2, prefix_trees=True), expected) < 1e-9


def test_records_with_images_are_imitated(
    bridge: StoreBridge, played: VisionPlayer, alone: Parallel, mongod: Mongod, tmp_path: Path
) -> None:
    """The first loss is the mean of what transformers' own forward says of the sampled tokens."""
    given = {"model_name_or_path": played.folder, "run": RUN, "db_connection_string": mongod.connection_string}
    sft.train(
        SftConfig(**given, output_dir=tmp_path / "out", max_steps=1, samples_per_step=2 * GROUPS, min_score=0), alone
    )
    (line,) = [json.loads(line) for line in (tmp_path / "out" / METRICS_FILE).read_text().splitlines()]
    chosen = (tmp_path / "out" / CHOICE_FILE).read_text().splitlines()
    ids = [json.loads(one)["record"] for one in chosen]
    assert len(ids) == 2 * GROUPS
    dispatches = [d for of in bridge(bridge.store.records.tokens_of(ids)).values() for d in of]
    logprobs = np.concatenate([unpack_floats(d.response.output_logprobs) for d in dispatches if d.response])
    assert line["loss/loss"] == pytest.approx(-logprobs.mean(), rel=1e-5)


def test_offline_the_images_come_with_the_groups(
    bridge: StoreBridge, played: VisionPlayer, alone: Parallel, mongod: Mongod
) -> None:
    async def copied(target: Store) -> int:
        async with Store.open(mongod.connection_string, RUN, read_only=True) as source:
            return await copy_groups(source, target, "main")

    with StoreBridge(mongod.connection_string, "other-run") as other:
        assert other(copied(other.store)) == GROUPS
        publish(other, range(1))
        assert oldest_of(begin(other, alone, played.folder), 1) == {"t0", "t1"}
        other(other.store.client.drop_database("other-run"))
