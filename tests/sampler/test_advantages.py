"""Advantage estimators against their formulas."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.core.settings.groups import Advantage
from sampler.core.settlement.advantages import NORMS, leave_one_out, maxrl, mean_baseline, returns, zscore
from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn, turn_rewards

REWARDS = st.lists(st.floats(-10, 10, allow_nan=False), min_size=1, max_size=16)
SCORES = st.lists(st.integers(0, 1000).map(lambda n: n / 1000), min_size=1, max_size=16)


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


@given(SCORES)
def test_maxrl_divides_by_the_mean_and_is_zero_if_no_episode_succeeds(rewards: list[float]) -> None:
    mean = statistics.fmean(rewards)
    expected = [(r - mean) / mean if mean > 0 else 0.0 for r in rewards]
    assert maxrl(rewards) == pytest.approx(expected, abs=1e-9)
    assert maxrl([-1.0, 0.0]) == [0.0, 0.0]


def episode(scores: list[float | None]) -> ScoredEpisode:
    turns = tuple(ScoredTurn(f"r:{t}", score, "") for t, score in enumerate(scores))
    return ScoredEpisode("r", 0.0, False, turns)


def test_turn_rewards_sum_to_the_reward_and_the_last_turn_gets_the_remainder() -> None:
    assert turn_rewards(episode([None, None]), 1.0) == [0.0, 1.0]
    assert turn_rewards(episode([0.25, None, 0.5]), 1.0) == [0.25, 0.0, 0.75]
    assert turn_rewards(episode([-0.5, None]), 0.5) == [-0.5, 1.0]


def test_a_return_is_the_discounted_sum_of_later_rewards() -> None:
    assert returns(episode([1.0, None, None]), 3.0, 0.5) == [1.5, 1.0, 2.0]
    assert returns(episode([1.0, None, None]), 3.0, 1.0) == [3.0, 2.0, 2.0]


@pytest.mark.parametrize("name", sorted(NORMS))
def test_one_episode_alone_has_no_advantage(name: Advantage) -> None:
    assert NORMS[name]([0.7]) == [0.0]


@pytest.mark.parametrize("name", sorted(NORMS))
def test_equal_rewards_give_exactly_zero(name: Advantage) -> None:
    assert NORMS[name]([0.1] * 7) == [0.0] * 7


@pytest.mark.parametrize("name", sorted(NORMS))
@given(rewards=SCORES)
def test_advantages_of_a_group_sum_to_zero(name: Advantage, rewards: list[float]) -> None:
    assert math.fsum(NORMS[name](rewards)) == pytest.approx(0.0, abs=1e-6)
