"""Advantage estimators by name: the bundled ones, and a user's own, which a module of `advantage_modules` registers.

    @register_advantage("median")
    def median(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[float]:
        return [reward - statistics.median(rewards) for reward in rewards]

An estimator gives one number per episode, or of each episode one number per turn. It must be a function of its arguments alone:
a settler that exits is replaced, and the same advantages must come out.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sampler.core.settings.groups import ESTIMATORS, GroupConfig
from sampler.core.settlement.groups import ScoredEpisode
from shared.names import shortened

Estimator = Callable[
    [Sequence[ScoredEpisode], Sequence[float], GroupConfig], Sequence[float] | Sequence[Sequence[float]]
]
F = TypeVar("F", bound=Estimator)


def register_advantage(name: str, *, observations: bool = False) -> Callable[[F], F]:
    """Decorator. `observations`: it looks at `ScoredTurn.observation`, which is empty otherwise (2 ms for 160 turns).

    Registering the same function again is harmless; another one under a known name is a ConfigError.
    """

    def register(function: F) -> F:
        ESTIMATORS.add(name, function, observations=observations)
        return function

    return register


def estimate(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[list[float]]:
    """Of each episode, one value per turn. Raises OwnCodeFailed for a mistake in a user's estimator."""
    values: Sequence[Any] = ESTIMATORS.call(config.advantage, partial(_problem, episodes), episodes, rewards, config)
    return [
        [value] * len(episode.turns) if isinstance(value, int | float) else list(value)
        for episode, value in zip(episodes, values, strict=True)
    ]


def _problem(episodes: Sequence[ScoredEpisode], estimates: object) -> str:
    """What is wrong with the result of a user's estimator; empty where nothing is."""
    expected = (
        f"expected a list of {len(episodes)}, one for each episode: a number, or a list of numbers, one for each turn"
    )
    if not isinstance(estimates, Sequence) or len(estimates) != len(episodes):
        return f"returned {shortened(estimates)}; {expected}"
    for k, (episode, value) in enumerate(zip(episodes, estimates, strict=True)):
        turns = value if isinstance(value, Sequence) and not isinstance(value, str) else [value] * len(episode.turns)
        if len(turns) != len(episode.turns):
            return f"gave episode {k} {len(turns)} values for its {len(episode.turns)} turns; {expected}"
        for one in turns:
            if not isinstance(one, int | float) or not math.isfinite(one):
                return f"gave episode {k} {shortened(one)}; expected finite numbers"
    return ""
