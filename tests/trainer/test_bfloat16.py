"""In bfloat16 a merged forward is no less exact than one forward per sequence: both are held against float32."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import FLEX_HEAD_DIM, gradients, random_group, tiny_experts_model, tiny_model
from tests.trainer.launched import OPTIMIZER, rows_of_step
from tests.trainer.layouts import Layout, run
from trainer.losses import LossConfig, LossName
from trainer.modeling.attention import choose
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.process.parallel import Parallel
from trainer.step.opening import open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

MOST = 1.5  # times the error of one forward per sequence
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def log_probs_and_gradients(
    groups: list[list[RecordTree]], dtype: torch.dtype, implementation: str, device: str, *, tree: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of every (record, trained token), in the records' order, and the gradients of their sum."""
    lm = TreeLM(tiny_model(dtype=dtype, attention=implementation, head_dim=FLEX_HEAD_DIM).to(device))
    attn = choose(implementation, device, linear=not tree)
    found = []
    for group in groups:
        merged = merge(group, merging=Merging.TREE if tree else Merging.LINEAR)
        logprob_E = torch.cat(
            [
                row_logprobs(lm, row.to(device), attn=attn)[0]
                for row in pack([merged], merged.num_tree if tree else 1, one_sequence_per_row=not tree)
            ]
        )
        logprob_E.sum().backward()
        found.append(logprob_E.detach().float().cpu().sort().values)
    return torch.cat(found), {name: gradient.float().cpu() for name, gradient in gradients(lm).items()}


@pytest.mark.parametrize(
    ("device", "merged_by"), [("cpu", "by_node"), pytest.param("cuda", "flex_attention", marks=ON_GPU)]
)
def test_merging_costs_no_precision_in_bfloat16(device: str, merged_by: str) -> None:
    groups = [random_group(seed) for seed in range(40)]
    truth, true_gradients = log_probs_and_gradients(groups, torch.float32, "sdpa", "cpu", tree=False)
    alone, alone_gradients = log_probs_and_gradients(groups, torch.bfloat16, "sdpa", device, tree=False)
    merged, merged_gradients = log_probs_and_gradients(groups, torch.bfloat16, merged_by, device, tree=True)
    assert len(truth) == len(merged) > 200

    def error(found: Tensor, expected: Tensor) -> float:
        return float((found - expected).square().mean().sqrt())

    assert 0 < error(merged, truth) <= MOST * error(alone, truth)
    ratios = [
        error(merged_gradients[name], exact) / error(alone_gradients[name], exact)
        for name, exact in true_gradients.items()
    ]
    assert np.exp(np.mean(np.log(ratios))) <= MOST, dict(zip(true_gradients, ratios, strict=True))


@pytest.mark.parametrize(
    ("layout", "experts"), [(Layout(1, tp=2), False), (Layout(1, tp=2, ep=2), True)], ids=["tp_size", "ep_size too"]
)
def test_steps_in_bfloat16_over_processes_are_near_those_of_one(
    layout: Layout, *, experts: bool, tmp_path: Path
) -> None:
    """Parameters and their gradients are float32; what passes between processes is bfloat16."""
    model = tiny_experts_model(dtype=torch.float32) if experts else tiny_model(dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        settings = dataclasses.replace(parallel.settings, precision="bf16")
        mixed = dataclasses.replace(parallel, settings=settings)
        learner = open_learner(tmp_path / "model", LossConfig(loss=LossName.CROSS_ENTROPY), OPTIMIZER, mixed)
        first = learner.step(*rows_of_step(0, 30, parallel)).metrics
        assert {p.dtype for p in learner.lm.parameters()} == {torch.float32}
        for _ in range(4):
            last = learner.step(*rows_of_step(0, 30, parallel)).metrics
        if parallel.is_main:
            numbers = [first["loss/loss"], first["learner/grad_norm"], last["loss/loss"]]
            torch.save(torch.tensor(numbers), tmp_path / str(parallel.world_size))

    for each in (Layout(1), layout):
        run(each, work)
    one, several = (torch.load(tmp_path / str(size), weights_only=True) for size in (1, 2))
    assert one[2] < 0.95 * one[0], "it learns"
    torch.testing.assert_close(several, one, rtol=0.02, atol=0)
