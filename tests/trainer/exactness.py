"""Loss and gradients two ways: one forward per sequence by the formulas, and through the trainer's merge, rows and losses."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import RecordBuilder, gradients, logprobs_one_by_one, relative_difference
from tests.trainer.formulas import reference_loss
from trainer.losses import Denominators, LossBatch, LossConfig, LossName, compute
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.trees.packing import Row, pack
from trainer.trees.tree import TokenTree

TOLERANCE = 1e-9
CONFIGS = {
    "minirl": LossConfig(importance_weight_cap_ratio=1.5),
    "grpo": LossConfig(loss=LossName.GRPO, out_of_date_decay=0.1),
    "a3po": LossConfig(loss=LossName.GRPO, clip_anchor="proximal", proximal_logprobs="loglinear", rollout_is="token"),
    "cross-entropy": LossConfig(loss=LossName.CROSS_ENTROPY),
}
seeds = st.integers(0, 2**32 - 1)
every_loss = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def one_by_one(
    model: PreTrainedModel, records: Sequence[RecordTree], config: LossConfig
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one forward per sequence, by the formulas; the token lists by record."""
    model.zero_grad()
    loss = reference_loss(logprobs_one_by_one(model, records), config)
    if loss.requires_grad:
        loss.backward()
    return loss.item(), gradients(model)


def merged(
    model: PreTrainedModel, trees: Sequence[TokenTree], config: LossConfig, max_tokens: int = 10_000, chunk: int = 7
) -> tuple[float, dict[str, Tensor]]:
    """The same through the trainer's code; one backward per row."""
    model.zero_grad()
    denominators = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
    total = sum(backward(model, row, denominators, config, chunk) for row in pack(trees, max_tokens))
    return float(total), gradients(model)


def backward(model: PreTrainedModel, row: Row, denominators: Denominators, config: LossConfig, chunk: int = 7) -> float:
    logprob_E, _ = row_logprobs(TreeLM(model), row, chunk=chunk)
    loss, _ = compute(LossBatch.of(row, logprob_E), denominators, config)
    loss.backward()
    return loss.item()


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if not any(gradient.any() for gradient in expected.values()):  # everything clipped, or nothing trained
        assert all(gradient.abs().max() < 1e-12 for gradient in found.values())
        return
    assert relative_difference(found, expected) < TOLERANCE


def forking_records() -> list[RecordTree]:
    """Two records with one prompt and reply, then their own: every kind of sharing, and enough tokens to see an error."""
    records = []
    for name, reply, advantage in (("a", [1, 2, 0, 2], 1.3), ("b", [1, 2, 1, 1], -0.7)):
        builder = RecordBuilder(name)
        prompt = builder.context([7, 8, 9, 10])
        logprobs = [-3.6 - 0.3 * len(records) + 0.2 * i for i in range(4)]
        first = builder.reply(reply, prompt, logprobs=logprobs, advantage=advantage)
        builder.reply([2, 0, 1], builder.context([3, 4], first), logprobs=[-3.6] * 3, advantage=advantage)
        builder.reply([0, 0, 2], builder.context([4], prompt), logprobs=[-3.4] * 3, advantage=advantage)
        records.append(builder.build())
    return records
