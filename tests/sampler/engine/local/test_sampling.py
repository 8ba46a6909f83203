"""Tokens of a large vocabulary are drawn by blocks: the same tokens as by one sum over all, and never one of probability 0."""

import torch

from sampler.engine.local.sampling import ONE_SUM, VOCABULARY_BLOCK, _by_blocks, _invert

VOCABULARY = ONE_SUM + VOCABULARY_BLOCK + 7  # the last block is short
TINY = 1e-6  # of float32 sums


def uniforms(count: int) -> torch.Tensor:
    """[count, 1], from 0 to the largest number below 1."""
    return torch.linspace(0, 1, count, dtype=torch.float64)[:, None].clamp(max=1 - 2.0**-53)


def test_blocks_draw_the_tokens_of_the_whole_distribution() -> None:
    probs = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)).mul(3).softmax(-1)
    uniform = uniforms(4001)
    found = _by_blocks(probs.expand(len(uniform), -1), uniform)
    cumulative = probs.double().cumsum(-1)
    target = uniform[:, 0] * cumulative[-1]
    assert (cumulative[found] >= target - TINY).all()
    assert (cumulative[found] - probs.double()[found] <= target + TINY).all()
    assert len(found.unique()) > 300


def test_a_token_of_probability_0_is_never_drawn() -> None:
    likely = [3, VOCABULARY_BLOCK - 1, 5 * VOCABULARY_BLOCK, VOCABULARY - 1]
    probs = torch.zeros(VOCABULARY)
    probs[likely] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found = _by_blocks(probs.expand(1001, -1), uniforms(1001))
    assert found.unique().tolist() == likely
    shares = torch.bincount(found)[likely] / len(found)
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=2e-3, rtol=0)


def test_the_remainder_of_a_uniform_number_is_uniform() -> None:
    """The draw within a block needs a second uniform number: the remainder of the first one, scaled to the block's mass."""
    masses = torch.tensor([[1.0, 0.0, 3.0]]).expand(8, -1)
    place, left = _invert(masses, (torch.arange(8, dtype=torch.float64)[:, None] + 0.5) / 8)
    assert place[:, 0].tolist() == [0, 0, 2, 2, 2, 2, 2, 2]
    torch.testing.assert_close(left[:, 0] * 12, torch.tensor([3, 9, 1, 3, 5, 7, 9, 11], dtype=torch.float64))
