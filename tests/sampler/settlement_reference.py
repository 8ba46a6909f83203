"""Reference implementation of settlement, from docs/train/groups.md, with plain loops over float64 arrays.

It shares nothing with `sampler.core.settlement.rules` and `sampler.core.settlement.advantages` but the values that go in.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sampler.core.settings.groups import GroupConfig
from sampler.core.settlement.groups import ScoredEpisode


@dataclass
class Expected:
    """`dropped` is {record: rule}, `advantages` {dispatch: value} of what is kept."""

    dropped: dict[str, str] = field(default_factory=dict)
    refused: bool = False
    advantages: dict[str, float] = field(default_factory=dict)


def expected_settlement(group: Sequence[ScoredEpisode], num_generations: int, config: GroupConfig) -> Expected:
    out = Expected()
    left = []
    for e in group:
        if len(e.turns) == 0:
            out.dropped[e.record] = "replied"
        elif e.score > 1 - 1e-9 and e.num_turns < config.min_turns:
            out.dropped[e.record] = "turns"
        else:
            left.append(e)
    if config.reserve_context_error_count is not None:
        lots = sorted(lot(e) for e in left if e.over_long)
        out.dropped |= {e.record: "beyond" for e in left if lot(e) in lots[config.reserve_context_error_count :]}
        left = [e for e in left if e.record not in out.dropped]
    if config.balance_sample:
        sides = [sorted(lot(e) for e in left if (e.score > 1 - 1e-9) is side) for side in (True, False)]
        size = min(map(len, sides)) or num_generations
        out.dropped |= {e.record: "balance" for e in left if lot(e) in sides[0][size:] + sides[1][size:]}
        left = [e for e in left if e.record not in out.dropped]
    scores = np.array([e.score for e in left], dtype=np.float64)
    out.refused = len(left) < min(config.min_group_size, num_generations)
    out.refused |= config.mask_overlong and all(e.over_long for e in left)
    tolerance = config.zero_variance_tolerance
    out.refused |= tolerance is not None and len(left) > 0 and bool(np.ptp(scores) < tolerance)
    if out.refused:
        out.dropped |= {e.record: "group" for e in left}
        return out
    rewards = scores + shaping(left, config)
    table = advantage_table(left, rewards, config)
    for i, e in enumerate(left):
        for t, turn in enumerate(e.turns):
            out.advantages[turn.dispatch] = config.adv_scaling * table[i, t]
    return out


def lot(e: ScoredEpisode) -> str:
    return hashlib.sha256(e.record.encode()).hexdigest()


def shaping(group: Sequence[ScoredEpisode], config: GroupConfig) -> np.ndarray:
    """Rank among one's own side, from -1 to 1, ties shared; shorter is better among the correct, longer among the wrong."""
    added = np.zeros(len(group))
    if not config.efficient_rewarding:
        return added
    for side, sign in ((True, -1.0), (False, 1.0)):
        members = [i for i, e in enumerate(group) if (e.score > 1 - 1e-9) is side]
        n = len(members)
        if n < 2:
            continue
        turns = [group[i].num_turns for i in members]
        ordered = sorted(turns)
        for i, mine in zip(members, turns, strict=True):
            ranks = [place for place, value in enumerate(ordered) if value == mine]
            centered = np.mean(ranks) - (n - 1) / 2
            added[i] = sign * config.efficient_rewarding_magnitude * centered / ((n - 1) / 2)
    return added


def advantage_table(group: Sequence[ScoredEpisode], rewards: np.ndarray, config: GroupConfig) -> np.ndarray:
    """[episodes, turns of the longest], nan beyond an episode's end."""
    longest = max(len(e.turns) for e in group)
    table = np.full((len(group), longest), np.nan)
    name = str(config.advantage)
    if name in ("mean", "zscore", "leave_one_out", "maxrl"):
        for i in range(len(group)):
            table[i, : len(group[i].turns)] = of_episode(name, rewards, i)
        return table
    gains = gain_table(group, rewards, config.turn_discount, longest)
    if name == "reward_to_go":
        return np.stack([gains[:, t] - np.nanmean(gains[:, t]) for t in range(longest)], axis=1)
    divide = str(config.gigpo_mode) == "mean_std_norm"
    weights = [len(e.turns) if config.gigpo_cross_steps else 1 for e in group]
    sample = np.repeat(rewards, weights)
    for i, e in enumerate(group):
        for t, turn in enumerate(e.turns):
            alike = np.array(
                [
                    gains[j, u]
                    for j, f in enumerate(group)
                    for u in range(len(f.turns))
                    if f.turns[u].observation == turn.observation
                ]
            )
            step = standing(gains[i, t], alike, divide)
            table[i, t] = standing(rewards[i], sample, divide) + config.gigpo_weight * step
    return table


def standing(value: float, among: np.ndarray, divide: bool) -> float:
    difference = value - among.mean()
    if not divide or len(among) < 2:
        return float(difference)
    return float(difference / (among.std(ddof=1) + 1e-6))


def of_episode(name: str, rewards: np.ndarray, i: int) -> float:
    if len(rewards) == 1:
        return 0.0
    if name == "leave_one_out":
        return float(rewards[i] - np.delete(rewards, i).mean())
    difference = float(rewards[i] - rewards.mean())
    if name == "zscore":
        return difference / (float(rewards.std(ddof=1)) + 1e-6)
    if name == "maxrl":
        return difference / float(rewards.mean()) if rewards.mean() > 1e-12 else 0.0
    return difference


def gain_table(group: Sequence[ScoredEpisode], rewards: np.ndarray, discount: float, longest: int) -> np.ndarray:
    gains = np.full((len(group), longest), np.nan)
    for i, e in enumerate(group):
        earned = np.array([turn.score if turn.score is not None else 0.0 for turn in e.turns])
        earned[-1] += rewards[i] - earned.sum()
        for t in range(len(earned)):
            gains[i, t] = sum(discount ** (k - t) * earned[k] for k in range(t, len(earned)))
    return gains
