"""Advantage estimators against their formulas."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.advantages import ESTIMATORS, leave_one_out, mean_baseline, zscore

REWARDS = st.lists(st.floats(-10, 10, allow_nan=False), min_size=1, max_size=16)


@given(REWARDS)
def test_mean_baseline_is_the_reward_minus_the_mean(rewards: list[float]) -> None:
    mean = statistics.fmean(rewards)
    assert mean_baseline(rewards) == pytest.approx([r - mean for r in rewards], abs=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_zscore_divides_by_the_sample_standard_deviation(rewards: list[float]) -> None:
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    assert zscore(rewards) == pytest.approx([(r - mean) / (std + 1e-6) for r in rewards], abs=1e-6)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16))
def test_leave_one_out_subtracts_the_mean_of_the_others(rewards: list[float]) -> None:
    expected = [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert leave_one_out(rewards) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_equal_rewards_give_exactly_zero(name: str) -> None:
    assert ESTIMATORS[name]([0.1] * 7) == [0.0] * 7


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(rewards=REWARDS)
def test_advantages_of_a_group_sum_to_zero(name: str, rewards: list[float]) -> None:
    assert math.fsum(ESTIMATORS[name](rewards)) == pytest.approx(0.0, abs=1e-6)
