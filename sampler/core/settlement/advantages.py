"""Computes the advantages of one group's episodes from their rewards. Pure functions; docs/train/groups.md lists the formulas.

The input holds only episodes that are trained on or kept for the baseline: infrastructure failures have no reward and are not
part of the statistics. A single episode has advantage 0.

    by episode   rewards of the group ─▶ one value per episode, the same for all its turns
    by turn      rewards and observations of the turns ─▶ one value per turn
"""

import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

from sampler.core.settings.groups import Advantage, GigpoMode, GroupConfig
from sampler.core.settlement.groups import ScoredEpisode, follows, turn_rewards
from sampler.core.settlement.registry import estimate, register_advantage

ZSCORE_EPSILON = 1e-6
ALIKE = 1e-12  # of the largest: a difference from the mean up to this is rounding
SMALLEST, LARGEST = 1e-150, 1e150  # between them squares are ordinary doubles
Key = TypeVar("Key")
Norm = Callable[[Sequence[float]], list[float]]


def group_advantages(
    episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig
) -> list[tuple[float, ...]]:
    """One value per turn for each episode, `adv_scaling` included."""
    return [tuple(config.adv_scaling * a for a in of_episode) for of_episode in estimate(episodes, rewards, config)]


# ---------------------------------------------------------------------- by episode


def mean_baseline(rewards: Sequence[float]) -> list[float]:
    """A_i = R_i − mean(R): Dr. GRPO, arXiv 2503.20783; MiniRL, arXiv 2512.01374. Of unequal rewards never all 0."""
    centered = _centered(rewards)
    return [_as_float(a) for a in _exactly_centered(rewards)] if centered is None else centered


def zscore(rewards: Sequence[float]) -> list[float]:
    """A_i = (R_i − mean(R)) / (std(R) + 1e-6), with the sample standard deviation: GRPO, arXiv 2402.03300. Of unequal rewards
    never all 0."""
    centered = _centered(rewards)
    if centered is None:
        return _exact_zscore(rewards)
    if len(rewards) < 2:
        return centered
    std = math.sqrt(math.fsum(a * a for a in centered) / (len(rewards) - 1))
    return [a / (std + ZSCORE_EPSILON) for a in centered]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """A_i = R_i − mean of the others = K/(K−1) · (R_i − mean(R)): RLOO, arXiv 2402.14740. Single episode: 0."""
    k = len(rewards)
    scale = k / (k - 1) if k > 1 else 1.0
    return [scale * a for a in mean_baseline(rewards)]


def maxrl(rewards: Sequence[float]) -> list[float]:
    """A_i = (R_i − mean(R)) / mean(R), for rewards of 0 and 1: MaxRL, arXiv 2602.02710. 0 if the mean is not positive."""
    mean = math.fsum(rewards) / len(rewards)
    return [a / mean for a in mean_baseline(rewards)] if mean > ALIKE * max(map(abs, rewards)) else [0.0] * len(rewards)


NORMS: dict[Advantage, Norm] = {
    Advantage.MEAN: mean_baseline,
    Advantage.ZSCORE: zscore,
    Advantage.LEAVE_ONE_OUT: leave_one_out,
    Advantage.MAXRL: maxrl,
}


def _register_by_episode(name: Advantage, norm: Norm) -> None:
    @register_advantage(name)
    def estimator(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[float]:
        return norm(rewards)


for _name, _norm in NORMS.items():
    _register_by_episode(_name, _norm)


def _centered(rewards: Sequence[float]) -> list[float] | None:
    """R_i − mean(R), 0 where that is rounding. None: doubles do not tell these unequal rewards apart, or not their squares."""
    largest = max(map(abs, rewards))
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    if not SMALLEST < largest < LARGEST:
        return None
    mean = math.fsum(rewards) / len(rewards)
    centered = [0.0 if abs(r - mean) <= ALIKE * largest else r - mean for r in rewards]
    return centered if any(centered) else None


def _exactly_centered(rewards: Sequence[float]) -> list[Fraction]:
    exact = [Fraction(r) for r in rewards]
    mean = sum(exact, Fraction(0)) / len(exact)
    return [r - mean for r in exact]


def _exact_zscore(rewards: Sequence[float]) -> list[float]:
    centered = _exactly_centered(rewards)
    scale = max(abs(a) for a in centered)
    std = scale * Fraction(math.sqrt(math.fsum(float(a / scale) ** 2 for a in centered) / (len(rewards) - 1)))
    return [_as_float(a / (std + Fraction(ZSCORE_EPSILON))) for a in centered]


def _as_float(value: Fraction) -> float:
    """The nearest double that is neither 0, unless `value` is, nor infinite."""
    try:
        number = float(value)
    except OverflowError:
        number = sys.float_info.max if value > 0 else -sys.float_info.max
    return number or math.copysign(math.ulp(0.0), value) * (value != 0)


# ---------------------------------------------------------------------- by turn


def returns(episode: ScoredEpisode, reward: float, discount: float) -> list[float]:
    """G_t = Σ_k≥t γ^(k−t) r_k: the return from turn t on, over turns that were asked after its reply.

    Turns of other threads that were asked before that are not its consequences; they count neither in the sum nor in k − t.
    """
    if any(turn.while_open for turn in episode.turns):
        return _returns_of_threads(episode, reward, discount)
    total, sums = 0.0, []
    for earned in reversed(turn_rewards(episode, reward)):
        total = earned + discount * total
        sums.append(total)
    return sums[::-1]


def _returns_of_threads(episode: ScoredEpisode, reward: float, discount: float) -> list[float]:
    earned, turns, sums = turn_rewards(episode, reward), episode.turns, []
    for at, turn in enumerate(turns):
        later = [k for k in range(at + 1, len(turns)) if follows(turn, turns[k])]
        sums.append(math.fsum(discount**n * earned[k] for n, k in enumerate([at, *later])))
    return sums


@register_advantage(Advantage.REWARD_TO_GO)
def reward_to_go(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[list[float]]:
    """A_t = G_t − mean of G_t over the episodes that have a turn t (as PipelineRL's groups by step). Single such episode: 0."""
    gains = [returns(e, r, config.turn_discount) for e, r in zip(episodes, rewards, strict=True)]
    return _within(gains, [list(range(len(of_episode))) for of_episode in gains], mean_baseline)


@register_advantage(Advantage.GIGPO, observations=True)
def gigpo(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[list[float]]:
    """A = A_E + ω·A_S: GiGPO, arXiv 2505.10978.

    A_E: the episode's reward relative to the group. A_S: G_t relative to all turns of the group with the same observation;
    0 if there is no other.
    """
    norm = zscore if config.gigpo_mode is GigpoMode.MEAN_STD_NORM else mean_baseline
    lengths = [len(e.turns) for e in episodes]
    if config.gigpo_cross_steps:
        of_turns = [[r] * n for r, n in zip(rewards, lengths, strict=True)]
        whole = _within(of_turns, [["group"] * n for n in lengths], norm)
    else:
        whole = [[a] * n for a, n in zip(norm(rewards), lengths, strict=True)]
    gains = [returns(e, r, config.turn_discount) for e, r in zip(episodes, rewards, strict=True)]
    steps = _within(gains, [[turn.observation for turn in e.turns] for e in episodes], norm)
    return [
        [a + config.gigpo_weight * s for a, s in zip(of_episode, of_turns, strict=True)]
        for of_episode, of_turns in zip(whole, steps, strict=True)
    ]


def _within(values: Sequence[Sequence[float]], keys: Sequence[Sequence[Key]], norm: Norm) -> list[list[float]]:
    """Apply `norm` to the values that share a key; both arguments and the result are per episode, per turn."""
    places: dict[Key, list[tuple[int, int]]] = {}
    for i, of_episode in enumerate(keys):
        for t, key in enumerate(of_episode):
            places.setdefault(key, []).append((i, t))
    of_turns = [[0.0] * len(of_episode) for of_episode in values]
    for members in places.values():
        for (i, t), value in zip(members, norm([values[i][t] for i, t in members]), strict=True):
            of_turns[i][t] = value
    return of_turns
