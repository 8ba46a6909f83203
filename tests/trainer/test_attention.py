"""The tree mask for FlexAttention is the tree mask, and attention that would be wrong is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers import (
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3Config,
    SwitchTransformersConfig,
)

from tests.trainer.builders import FLEX_HEAD_DIM, random_tree_record, tiny_model
from trainer.modeling.attention import (
    BLOCK,
    added_mask,
    block_rule,
    choose,
    dense_mask,
    interval_block_mask,
    mask_counts,
    no_mask,
    sdpa_mask,
)
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.forward_ways import attentions, tree_obstacle
from trainer.modeling.node_attention import spans_of_row
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge


def large_row(seed: int, num_tokens: int, num_runs: int) -> Row:
    rng = np.random.default_rng(seed)
    records = [
        random_tree_record(rng, int(n), num_runs, vocabulary=37) for n in rng.integers(num_tokens // 4, num_tokens, 3)
    ]
    (row,) = pack([merge([record]) for record in records], 10 * num_tokens)
    return row.padded(BLOCK)


@pytest.mark.parametrize("seed", range(6))
def test_the_block_rule_says_what_the_dense_mask_says(seed: int) -> None:
    row = large_row(seed, 1200, 8)
    blocks = dense_mask(row.ends_N)[0, 0].view(row.num_tokens // BLOCK, BLOCK, -1, BLOCK)
    some_QK, full_QK = block_rule(row.ends_N)
    assert torch.equal(some_QK, blocks.any(3).any(1))
    assert torch.equal(full_QK, blocks.all(3).all(1))
    assert full_QK.any()
    assert not some_QK.all()


def test_the_block_mask_is_the_one_that_pytorch_makes_from_the_dense_mask() -> None:
    row = large_row(1, 1200, 12)
    n, mask = row.num_tokens, dense_mask(row.ends_N)[0, 0]
    expected = create_block_mask(lambda b, h, q, k: mask[q, k], None, None, n, n, device="cpu", BLOCK_SIZE=BLOCK)
    found = interval_block_mask(row.ends_N)
    assert found.shape == expected.shape
    for kind in ("kv", "full_kv", "q", "full_q"):
        count, index = getattr(found, f"{kind}_num_blocks")[0, 0], getattr(found, f"{kind}_indices")[0, 0]
        expected_index = getattr(expected, f"{kind}_indices")[0, 0]
        assert torch.equal(count, getattr(expected, f"{kind}_num_blocks")[0, 0])
        assert count.any()
        for block, number in enumerate(count.tolist()):
            assert torch.equal(index[block, :number], expected_index[block, :number])
    query, key = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    assert torch.equal(found.mask_mod(torch.tensor(0), torch.tensor(0), query, key), mask)


def test_a_block_mask_needs_a_padded_row() -> None:
    with pytest.raises(ValueError, match="multiple of 128"):
        interval_block_mask(torch.arange(1, 100))


def test_attention_that_would_be_wrong_or_has_no_backward_is_refused() -> None:
    assert choose("by_node", "cpu") is spans_of_row
    assert choose("sdpa", "cpu") is sdpa_mask
    assert choose("flex_attention", "cuda") is interval_block_mask
    assert choose("eager", "cpu") is added_mask
    with pytest.raises(ValueError, match="for token trees"):
        choose("flash_attention_2", "cpu")
    with pytest.raises(ValueError, match="no backward on cpu"):
        choose("flex_attention", "cpu")
    with pytest.raises(ValueError, match="is for CPUs"):
        choose("by_node", "cuda")
    assert choose("flash_attention_2", "cuda", linear=True) is no_mask


def test_the_backend_follows_the_device_unless_it_is_named() -> None:
    assert attentions("auto", "cpu") == ("by_node", "sdpa", "eager")
    assert attentions("auto", "cuda") == ("flex_attention", "sdpa", "eager")
    assert attentions("sdpa", "cuda") == ("sdpa",)


def test_a_row_of_one_sequence_needs_no_mask_for_sdpa() -> None:
    assert sdpa_mask(torch.full((5,), 5)) is None
    assert sdpa_mask(torch.tensor([2, 2, 5, 5, 5])) is not None


def test_block_density_and_padding_are_counted_over_rows() -> None:
    chain, two = torch.full((256,), 256), torch.tensor([128] * 128 + [250] * 122)
    (row,) = pack([merge([random_tree_record(np.random.default_rng(0), 250, 9)])], 1000)
    rows = [dataclasses.replace(row, ids_N=torch.zeros_like(ends), ends_N=ends) for ends in (chain, two)]
    assert mask_counts(rows, spans_of_row) == [506, 0, 3 + 2, 4 + 4]
    assert mask_counts(rows, interval_block_mask) == [506, 6, 3 + 2, 4 + 4]


LAYERS = {"num_hidden_layers": 2, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Qwen3Config(**LAYERS), None),
        (LlamaConfig(), None),
        (MixtralConfig(sliding_window=None), None),
        (Qwen3Config(**LAYERS, use_sliding_window=False, sliding_window=4096), None),
        (Qwen3Config(**LAYERS, use_sliding_window=True, sliding_window=16), None),
        (
            Qwen3Config(**LAYERS, use_sliding_window=True, sliding_window=4096),
            "sliding_window is 4096, more tokens than",
        ),
        (MistralConfig(sliding_window=4096), "sliding_window is 4096, more tokens than are measured"),
        (Llama4TextConfig(), "attention_chunk_size is 8192, more tokens than are measured"),
        (SwitchTransformersConfig(), "expert_capacity is 64"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "model_type") else str(value),
)
def test_settings_that_act_beyond_what_is_measured_are_read(config: PretrainedConfig, reason: str | None) -> None:
    found = tree_obstacle(config)
    assert (found is None) is (reason is None)
    assert (reason or "") in (found or "")


def test_a_row_of_several_sequences_is_refused_where_only_one_may_be() -> None:
    assert no_mask(torch.full((5,), 5)) is None
    with pytest.raises(ValueError, match="one_sequence_per_row"):
        no_mask(torch.tensor([2, 2, 5, 5, 5]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention's backward needs CUDA")
def test_flex_and_dense_give_the_same_log_probs_and_gradients_on_a_gpu() -> None:
    row = large_row(2, 600, 15).to("cuda")
    results = []
    for implementation in ("sdpa", "flex_attention"):
        lm = TreeLM(tiny_model(dtype=torch.float32, attention=implementation, head_dim=FLEX_HEAD_DIM).to("cuda"))
        logprob_E, _ = row_logprobs(lm, row, chunk=64, attn=choose(implementation, "cuda"))
        logprob_E.sum().backward()
        results.append([logprob_E.detach(), *(p.grad for p in lm.parameters())])
    for dense, flex in zip(*results, strict=True):
        assert (dense - flex).abs().max() <= 2e-3 * dense.abs().max()
