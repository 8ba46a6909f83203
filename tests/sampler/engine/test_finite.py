"""Whether new weights are numbers: one bad value in any place of any type and shape is found."""

import pytest
import torch

from sampler.engine.loading.finite import all_finite

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("count", [1, 3, 17, 1000, 65_537])
def test_one_value_that_is_not_finite_is_detected(dtype: torch.dtype, bad: float, count: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(count).to(dtype)
    assert all_finite(values)
    for place in {0, count // 2, count - 1}:
        damaged = values.clone()
        damaged[place] = bad
        assert not all_finite(damaged)
        assert not all_finite(damaged.flip(0).reshape(count, 1))


def test_no_values_and_the_largest_ones_are_finite() -> None:
    assert all_finite(torch.empty(0, 4))
    assert all_finite(torch.tensor([torch.finfo(torch.float32).max, torch.finfo(torch.float32).min]))


def test_of_a_strided_view_only_its_own_values_count() -> None:
    whole = torch.tensor([[1.0, float("nan")], [2.0, float("inf")]])
    assert all_finite(whole[:, 0])
    assert not all_finite(whole.T[1])
