"""In bfloat16 a merged forward is no less exact than one forward per sequence: both are held against float32."""

import numpy as np
import pytest
import torch
from torch import Tensor

from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import FLEX_HEAD_DIM, gradients, random_group, tiny_model
from trainer.modeling.attention import choose
from trainer.modeling.forward import TreeLM, row_logprobs
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
