"""Random groups, and the rules and estimators to settle them with; and how far settlement is from the reference on one."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn
from sampler.core.settlement.shares import decide
from sampler.settings import SamplerConfig
from tests.sampler.settlement_reference import expected_settlement

ESTIMATORS: dict[str, dict[str, Any]] = {
    "mean": {},
    "zscore": {"advantage": "zscore"},
    "leave_one_out": {"advantage": "leave_one_out"},
    "maxrl": {"advantage": "maxrl"},
    "reward_to_go": {"advantage": "reward_to_go"},
    "reward_to_go, discounted": {"advantage": "reward_to_go", "turn_discount": 0.9},
    "gigpo": {"advantage": "gigpo", "turn_discount": 0.95},
    "gigpo, mean_std_norm": {"advantage": "gigpo", "gigpo_mode": "mean_std_norm", "gigpo_weight": 0.5},
    "gigpo, cross_steps": {"advantage": "gigpo", "gigpo_cross_steps": True, "turn_discount": 0.95},
    "gigpo, both": {"advantage": "gigpo", "gigpo_cross_steps": True, "gigpo_mode": "mean_std_norm"},
    "adv_scaling": {"advantage": "zscore", "adv_scaling": 2.0},
}
RULES: dict[str, dict[str, Any]] = {
    "min_group_size": {"min_group_size": 4},
    "min_turns": {"min_turns": 2},
    "reserve_context_error_count": {"reserve_context_error_count": 1},
    "reserve_context_error_count 0": {"reserve_context_error_count": 0},
    "balance_sample": {"balance_sample": True},
    "zero_variance_tolerance": {"zero_variance_tolerance": 0.1},
    "mask_overlong": {"mask_overlong": True},
    "efficient_rewarding": {"efficient_rewarding": True},
    "efficient_rewarding 0.3": {"efficient_rewarding": True, "efficient_rewarding_magnitude": 0.3},
    "all of them": {
        "min_turns": 2,
        "reserve_context_error_count": 2,
        "balance_sample": True,
        "zero_variance_tolerance": 0.1,
        "mask_overlong": True,
        "efficient_rewarding": True,
        "advantage": "gigpo",
        "adv_scaling": 2.0,
    },
}
REASONS = {
    "replied": "the model never replied",
    "turns": "correct in fewer than",
    "beyond": "over-long, beyond",
    "balance": "balance: more",
}
SCORES: Sequence[Sequence[float]] = ((0.0, 1.0), (1.0,), (0.0,), (0.0, 0.5, 0.9, 1.0), (-0.2, 0.0, 1.0), (0.5, 0.55))


def make_config(fields: Mapping[str, Any]) -> SamplerConfig:
    return SamplerConfig.model_validate(
        {"run": "r", "db_connection_string": "x", "model_name_or_path": Path("."), **fields}
    )


def random_group(rng: random.Random, name: str = "t") -> tuple[list[ScoredEpisode], int]:
    """Scored episodes, and how many there should have been: ties, singletons, failed slots, all equal, no reply."""
    num_generations = rng.choice((1, 2, 3, 4, 8, 16))
    scores = rng.choice(SCORES)
    drawn = [round(rng.uniform(-1, 2), 3) for _ in range(num_generations)] if rng.random() < 0.2 else None
    group = []
    for k in range(num_generations):
        if rng.random() < 0.15:
            continue  # a failed slot
        n = rng.choice((1, 1, 2, 3, 5)) if rng.random() > 0.03 else 0
        turns = tuple(
            ScoredTurn(f"{name}:{k}:1:{t}", rng.choice((None, None, 0.25, -0.1, 1.0)), rng.choice("abcdefgh"))
            for t in range(n)
        )
        score = drawn[k] if drawn else rng.choice(scores)
        group.append(ScoredEpisode(f"{name}:{k}:1", score, rng.random() < 0.3, turns))
    return group, num_generations


def disagreement(group: Sequence[ScoredEpisode], num_generations: int, config: SamplerConfig) -> float:
    """The greatest difference of an advantage. Raises AssertionError where another episode is dropped, or by another rule."""
    found = decide(group, num_generations, config.group)
    expected = expected_settlement(group, num_generations, config.group)
    verdict = found.verdict
    assert (verdict.refusal is not None) == expected.refused, (group, verdict.refusal)
    assert set(verdict.dropped) == set(expected.dropped), (group, verdict.dropped, expected.dropped)
    for record, rule in expected.dropped.items():
        reason = verdict.dropped[record]
        assert reason == verdict.refusal if rule == "group" else reason.startswith(REASONS[rule]), (rule, reason)
    advantages = {d: a for of_record in found.advantages.values() for d, a in of_record.items()}
    assert set(advantages) == set(expected.advantages)
    masked = {e.record for e in group if config.group.mask_overlong and e.over_long} - set(verdict.dropped)
    assert found.masked == masked
    return max((abs(a - expected.advantages[d]) for d, a in advantages.items()), default=0.0)
