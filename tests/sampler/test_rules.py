"""The rules and estimators of settlement against their reference, and what each promises; without a database."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn, observation
from sampler.core.settlement.rules import by_lot, judge, rank_shaping
from sampler.core.settlement.shares import decide
from shared.documents.passing import num_passed
from shared.rules.groups import GroupConfig
from tests.sampler.builders import make_dispatch
from tests.sampler.settlement_cases import ESTIMATORS, RULES, disagreement, make_config, random_group


def episode(k: int, score: float, *, turns: int = 2, over_long: bool = False) -> ScoredEpisode:
    made = tuple(ScoredTurn(f"t:{k}:1:{t}", None, f"{t}") for t in range(turns))
    return ScoredEpisode(f"t:{k}:1", score, over_long, made)


@pytest.mark.parametrize("case", ESTIMATORS | RULES)
@settings(max_examples=40, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_settlement_equals_its_reference(case: str, rng: Random) -> None:
    group, num_generations = random_group(rng)
    assert disagreement(group, num_generations, make_config((ESTIMATORS | RULES)[case])) < 1e-9


@pytest.mark.parametrize("case", ESTIMATORS)
def test_equal_episodes_have_no_advantage_with_any_estimator(case: str) -> None:
    config = make_config(ESTIMATORS[case])
    found = decide([episode(k, 0.7) for k in range(5)], 5, config.group)
    assert {a for of_record in found.advantages.values() for a in of_record.values()} == {0.0}
    alone = decide([episode(0, 1.0)], 1, config.group)
    assert set(alone.advantages["t:0:1"].values()) == {0.0}


@settings(max_examples=100, deadline=None)
@given(turns=st.lists(st.integers(1, 9), min_size=1, max_size=16))
def test_shaping_sums_to_zero_stays_in_its_bounds_and_orders_by_turns(turns: list[int]) -> None:
    group = [episode(k, 0.0, turns=n) for k, n in enumerate(turns)]
    added = rank_shaping(group, 0.1)
    assert sum(added.values()) == pytest.approx(0.0, abs=1e-12)
    assert all(abs(value) <= 0.1 + 1e-12 for value in added.values())
    for one in group:
        for other in group:
            if one.num_turns < other.num_turns:
                assert added[one.record] < added[other.record]
            elif one.num_turns == other.num_turns:
                assert added[one.record] == added[other.record]


def test_short_is_better_among_the_correct_and_long_among_the_wrong() -> None:
    group = [episode(0, 1.0, turns=1), episode(1, 1.0, turns=5), episode(2, 0.0, turns=1), episode(3, 0.0, turns=5)]
    verdict = judge(group, 4, make_config({"efficient_rewarding": True}).group)
    assert verdict.rewards == pytest.approx([1.1, 0.9, -0.1, 0.1])


def test_settlement_curriculum_and_evaluation_agree_on_correctness() -> None:
    scores = [-1.0, 0.0, 0.5, 0.99, 0.7 + 0.2 + 0.1, 1.0, 1.2]
    group = [episode(k, score) for k, score in enumerate(scores)]
    assert sum(one.correct for one in group) == num_passed(scores) == 3


def test_a_group_is_balanced_to_the_size_of_its_smaller_side() -> None:
    group = [episode(k, float(k < 2)) for k in range(8)]
    verdict = judge(group, 8, make_config({"balance_sample": True}).group)
    assert [e.correct for e in verdict.kept].count(True) == 2
    assert [e.correct for e in verdict.kept].count(False) == 2
    assert set(verdict.dropped.values()) == {"balance: more wrong than correct"}


def test_a_group_is_dropped_if_its_scores_differ_by_less_than_the_tolerance() -> None:
    group = [episode(0, 0.5), episode(1, 0.75)]
    assert judge(group, 2, make_config({"zero_variance_tolerance": 0.25}).group).refusal is None
    refused = judge(group, 2, make_config({"zero_variance_tolerance": 0.26}).group)
    assert refused.refusal == "zero variance: scores differ by less than 0.26"
    assert (refused.kept, set(refused.dropped)) == ([], {"t:0:1", "t:1:1"})


def test_random_choices_do_not_depend_on_the_order_and_differ_between_groups() -> None:
    group = [episode(k, 0.0) for k in range(8)]
    assert by_lot(group) == by_lot(group[::-1])
    firsts = {by_lot([ScoredEpisode(f"t{n}:{k}:1", 0.0, False, ()) for k in range(8)])[0].record[-3] for n in range(40)}
    assert len(firsts) > 3


def test_masked_episodes_stay_in_the_baseline_and_dropped_ones_leave_it() -> None:
    group = [episode(0, 1.0), episode(1, 0.0), episode(2, 0.0, over_long=True)]
    masked = decide(group, 3, make_config({"mask_overlong": True}).group)
    assert masked.masked == {"t:2:1"}
    assert masked.advantages["t:0:1"]["t:0:1:0"] == pytest.approx(2 / 3)
    dropped = decide(group, 3, make_config({"reserve_context_error_count": 0}).group)
    assert dropped.verdict.dropped == {"t:2:1": "over-long, beyond the 0 kept of a group"}
    assert dropped.advantages["t:0:1"]["t:0:1:0"] == pytest.approx(1 / 2)


def test_dropping_episodes_that_are_to_be_masked_is_refused() -> None:
    with pytest.raises(ValidationError, match="mask_overlong keeps over-long episodes"):
        make_config({"mask_overlong": True, "reserve_context_error_count": 0})


def test_an_observation_covers_the_messages_since_the_last_reply_without_call_ids() -> None:
    told = {"role": "tool", "name": "look", "content": "a wall"}
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "look"}]
    first = make_dispatch("r", 1, [1], [2], messages=[told | {"tool_call_id": "c1"}])
    again = make_dispatch("r", 5, [1], [2], messages=[told | {"tool_call_id": "c5"}])
    restarted = make_dispatch("r", 6, [1], [2], messages=[*history, told])
    assert observation(first) == observation(again) == observation(restarted)
    for change in ({"content": "a door"}, {"name": "feel"}, {"role": "user"}):
        other = make_dispatch("r", 7, [1], [2], messages=[told | change])
        assert observation(other) != observation(first)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"turn_discount": 0.5}, "turn_discount has no effect without advantage = reward_to_go or gigpo"),
        ({"gigpo_weight": 0.5, "advantage": "reward_to_go"}, "gigpo_weight has no effect without advantage = gigpo"),
        ({"gigpo_mode": "mean_std_norm"}, "gigpo_mode has no effect"),
        ({"gigpo_cross_steps": True, "advantage": "zscore"}, "gigpo_cross_steps has no effect"),
        ({"efficient_rewarding_magnitude": 0.3}, "has no effect without efficient_rewarding = true"),
    ],
)
def test_a_setting_that_nothing_would_read_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GroupConfig.model_validate(values)


def test_an_estimator_of_ones_own_may_read_any_setting() -> None:
    GroupConfig.model_validate({"advantage": "median", "turn_discount": 0.5, "gigpo_weight": 0.1})
