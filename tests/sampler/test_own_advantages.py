"""A user's own advantage estimators: registered by name, selected by a setting, and refused with the line of a mistake."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sampler.core.settings.groups import GroupConfig, GroupSettings
from sampler.core.settlement import registry
from sampler.core.settlement.advantages import group_advantages
from sampler.core.settlement.groups import ScoredEpisode, ScoredTurn
from sampler.core.settlement.registry import Estimator, register_advantage
from sampler.settings import SamplerConfig
from shared.errors import ConfigError, OwnCodeFailed
from shared.store import Store
from tests.sampler.settling import settle
from tests.sampler.test_settle import varied_group

HERE = "tests/sampler/test_own_advantages.py:"
MODULE = """
from sampler.core.settlement.registry import register_advantage

@register_advantage("best_only")
def best_only(episodes, rewards, config):
    return [float(reward == max(rewards)) for reward in rewards]
"""
GROUP = [
    ScoredEpisode(f"r{k}", float(k), False, tuple(ScoredTurn(f"r{k}:{t}", None, "") for t in range(k + 1)))
    for k in range(3)
]
REWARDS = [0.0, 1.0, 2.0]


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten with it."""
    monkeypatch.setattr(registry.ESTIMATORS, "_known", dict(registry.ESTIMATORS._known))


def test_an_estimator_gives_a_number_per_episode_or_per_turn() -> None:
    @register_advantage("median")
    def median(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[float]:
        return [reward - statistics.median(rewards) for reward in rewards]

    @register_advantage("first_turn")
    def first_turn(
        episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig
    ) -> list[list[float]]:
        return [[r, *[0.0] * (len(e.turns) - 1)] for e, r in zip(episodes, rewards, strict=True)]

    by_episode = group_advantages(GROUP, REWARDS, GroupConfig(advantage="median", adv_scaling=2.0))
    assert by_episode == [(-2.0,), (0.0, 0.0), (2.0, 2.0, 2.0)]
    by_turn = group_advantages(GROUP, REWARDS, GroupConfig(advantage="first_turn"))
    assert by_turn == [(0.0,), (1.0, 0.0), (2.0, 0.0, 0.0)]


async def test_settlement_computes_advantages_by_the_module_that_the_settings_name(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "tests_own_advantages_module.py").write_text(MODULE)
    given = ["--run", "r", "--db_connection_string", "x", "--model_name_or_path", ".", "--advantage", "best_only"]
    with pytest.raises(ConfigError, match=r"advantage is 'best_only'; .*advantage 'best_only' is unknown"):
        SamplerConfig.load(given)
    config = SamplerConfig.load([*given, "--advantage_modules", f'["{tmp_path}/tests_own_advantages_module.py"]'])
    task = await varied_group(store)
    await settle(store, task, config)
    data = await store.data.find({"task": task.id, "group_size": {"$gt": 0}})
    best = max(d.reward for d in data)
    assert len({d.reward for d in data}) > 1
    for d in data:
        assert {dispatch.advantage for dispatch in d.dispatches} == {float(d.reward == best)}
    with pytest.raises(ConfigError, match=r"advantage_modules: 'no\.such' cannot be imported: ModuleNotFoundError"):
        SamplerConfig.load([*given, "--advantage_modules", '["no.such"]'])


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r'advantage \'z_score\' is unknown; did you mean "zscore"[?] Expected one of mean'
    ):
        GroupSettings(advantage="z_score")
    with pytest.raises(ConfigError, match="advantage 'mean' is registered twice"):
        register_advantage("mean")(lambda episodes, rewards, config: rewards)


def misspelt(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[float]:
    return [e.reward for e in episodes]  # type: ignore[attr-defined]  # what is tested


def one_for_all(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> Any:
    return sum(rewards)


def too_few(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[list[float]]:
    return [[reward] for reward in rewards]


def infinite(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> list[float]:
    return [reward * 1e308 * 10 for reward in rewards]


def words(episodes: Sequence[ScoredEpisode], rewards: Sequence[float], config: GroupConfig) -> Any:
    return ["good" for _ in rewards]


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (misspelt, f"failed: AttributeError: 'ScoredEpisode' object has no attribute 'reward'; at {HERE}"),
        (one_for_all, "returned 3.0; expected a list of 3, one for each episode"),
        (too_few, "gave episode 1 1 values for its 2 turns"),
        (infinite, "gave episode 1 inf; expected finite numbers"),
        (words, "gave episode 0 'good'; expected finite numbers"),
    ],
)
def test_a_mistake_in_an_estimator_names_its_line(estimator: Estimator, message: str) -> None:
    register_advantage("wrong")(estimator)
    with pytest.raises(OwnCodeFailed, match=f"^advantage 'wrong' {re.escape(message)}") as caught:
        group_advantages(GROUP, REWARDS, GroupConfig(advantage="wrong"))
    assert re.search(rf"; at {HERE}\d+(, in .*: return |: def {estimator.__name__}\()", str(caught.value))
