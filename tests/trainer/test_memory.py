"""What spares memory changes no gradient, and spares it; rows of trees and rows of single sequences alike."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shared.errors import ConfigError
from tests.trainer.builders import STALENESS, random_group, random_tree_record, relative_difference, tiny_model, whole
from tests.trainer.exactness import CONFIGS, TOLERANCE, one_by_one
from tests.trainer.launched import accumulated
from trainer.losses import Denominators
from trainer.modeling import node_attention
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.memory import checkpoint_layers, with_optimizer_offload
from trainer.process.parallel import Parallel
from trainer.process.shard_settings import ShardSettings
from trainer.settings.config import TrainerConfig
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

SETTINGS = {
    "plain": MemorySettings(),
    "checkpointed": MemorySettings(activation_checkpointing=True),
    "checkpointed and offloaded": MemorySettings(activation_checkpointing=True, activation_offload=True),
    "everything": MemorySettings(activation_checkpointing=True, activation_offload=True, optimizer_offload=True),
    "optimizer offloaded": MemorySettings(optimizer_offload=True),
}
RECORDS = random_group(21)


def gradients_of(learner: Learner, max_tokens: int) -> dict[str, Tensor]:
    """Through the trainer, by the names of the unsharded model."""
    merging = Merging.LINEAR if learner.linear else Merging.TREE
    tree = merge(RECORDS, merging=merging).at(STALENESS)
    rows = pack([tree], max_tokens, one_sequence_per_row=learner.linear)
    denominators = Denominators.count(torch.from_numpy(tree.trained_tokens_T))
    with exact_norms(learner.causal_lm):
        accumulated(learner, Minibatch(rows, denominators))
    found = {}
    for name, parameter in learner.causal_lm.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        found[name] = whole(parameter.grad).clone()
    return found


@pytest.mark.parametrize("prefix_trees", [True, False], ids=["trees", "linear"])
@pytest.mark.parametrize("attention", ["by_node", "sdpa"])
@pytest.mark.parametrize("memory", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_gradient_is_that_of_one_forward_per_sequence(
    memory: MemorySettings,
    attention: str,
    prefix_trees: bool,
    model_directory: Path,
    alone: Parallel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_attention, "SPAN", 4)
    plain = tiny_model()
    with exact_norms(plain):
        _, expected = one_by_one(plain, RECORDS, CONFIGS["grpo"])
    learner = open_learner(
        model_directory,
        CONFIGS["grpo"],
        OptimizerConfig(),
        alone,
        LearnerOptions(
            dtype="float64",
            attn_implementation=attention,
            prefix_trees=prefix_trees,
            memory=memory.model_copy(update={"logprob_chunk": 5}),
        ),
    )
    assert learner.linear is not prefix_trees
    assert relative_difference(gradients_of(learner, max_tokens=20), expected) < TOLERANCE


def saved_bytes(memory: MemorySettings, parallel: Parallel) -> int:
    """What a forward of 2000 tokens keeps for the backward, weights aside."""
    model = tiny_model(attention="by_node", dtype=torch.float32)
    checkpoint_layers(model, memory, parallel)
    (row,) = pack([merge([random_tree_record(np.random.default_rng(0), 2000, 40, vocabulary=37)])], 2000)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        row_logprobs(TreeLM(model), row, attn=node_attention.spans_of_row)
    return sum(kept.values())


def test_checkpointing_keeps_little_more_than_the_inputs_of_the_layers(alone: Parallel) -> None:
    assert saved_bytes(SETTINGS["checkpointed"], alone) < 0.25 * saved_bytes(SETTINGS["plain"], alone)


def test_the_launcher_may_ask_for_checkpointing_too(alone: Parallel) -> None:
    model = tiny_model()
    assert not model.is_activation_checkpointing
    launched = dataclasses.replace(alone, settings=ShardSettings(activation_checkpointing=True))
    checkpoint_layers(model, MemorySettings(), launched)
    assert model.is_activation_checkpointing


def test_the_optimizer_is_offloaded_where_there_is_another_memory_than_the_host_s(alone: Parallel) -> None:

    on_gpu = dataclasses.replace(alone, device=torch.device("cuda"))
    assert with_optimizer_offload(on_gpu, SETTINGS["everything"]).settings.offload_params
    assert not with_optimizer_offload(on_gpu, SETTINGS["checkpointed"]).settings.offload_params
    assert with_optimizer_offload(alone, SETTINGS["everything"]) is alone


def test_an_offload_of_what_nothing_checkpoints_is_refused() -> None:
    with pytest.raises(ConfigError, match="activation_offload moves what activation_checkpointing keeps"):
        TrainerConfig.load(
            ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", "m", "--activation_offload", "true"]
        )
