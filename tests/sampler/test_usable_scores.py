"""Scores of any real-number type count, and those that the trainer cannot use are refused where they are given."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sampler.core.episode.episode import play
from sampler.core.errors import EnvironmentFailed, ScorerFailed
from sampler.core.scorers.factory import MCPScorerFactory
from sampler.core.scorers.registry import MAX_MISTAKES, score_answer, score_group
from sampler.core.scorers.weighted import weighted_sum
from sampler.core.settlement.advantages import leave_one_out, mean_baseline, zscore
from sampler.environments.answers import step_of
from sampler.gateway.agent_sampler import AgentTask
from sampler.scorers import GroupEpisode, GroupRequest, Score, ScoringRequest, register_group_scorer, register_scorer
from shared.documents.states import RecordStatus
from shared.episodes.feedback import give_feedback
from shared.errors import FeedbackRefused
from shared.scores import LARGEST_SCORE, real_number, usable_score
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, an_episode, played
from trainer.data.advantages import _sample_std

pytestmark = pytest.mark.usefixtures("own_scorers")

NUMBERS: dict[str, tuple[Any, float]] = {
    "numpy float32": (np.float32(0.5), 0.5),
    "numpy int64": (np.int64(1), 1.0),
    "numpy bool": (np.bool_(True), 1.0),
    "numpy 0-d array": (np.array(0.25), 0.25),
    "torch scalar": (torch.tensor(0.5), 0.5),
    "torch scalar with a gradient": (torch.tensor(0.5, requires_grad=True), 0.5),
    "torch bfloat16": (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    "torch bool": (torch.tensor(True), 1.0),
    "Decimal": (Decimal("0.1"), 0.1),
    "Fraction": (Fraction(1, 4), 0.25),
    "bool": (True, 1.0),
    "int": (-3, -3.0),
    "the largest": (LARGEST_SCORE, LARGEST_SCORE),
}
UNUSABLE: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": -math.inf,
    "numpy NaN": np.float32("nan"),
    "torch infinity": torch.tensor(math.inf),
    "Decimal NaN": Decimal("sNaN"),
    "beyond the root of float32's range": 1.9e19,
    "1e40": -1e40,
    "1.7e308": 1.7e308,
    "beyond a double": 10**400,
    "a text": "1",
    "a list": [1.0],
    "an array": np.array([1.0]),
    "a tensor of one": torch.tensor([1.0]),
    "complex": 1 + 0j,
    "a duration": np.timedelta64(1),
}
REQUEST = ScoringRequest(answer="4", accepted=("4",))
GROUP = GroupRequest(("4",), "2+2?", (GroupEpisode("r", 0.0, "4", "4"),))


@pytest.mark.parametrize("case", NUMBERS)
async def test_a_score_of_any_real_number_type_counts(case: str) -> None:
    given_score, expected = NUMBERS[case]

    @register_scorer("plain")
    def plain(request: ScoringRequest) -> Any:
        return given_score

    @register_scorer("whole")
    def whole(request: ScoringRequest) -> Score:
        return Score(given_score, actors={"A": given_score})

    @register_group_scorer("of_all")
    def of_all(request: GroupRequest) -> list[Any]:
        return [given_score]

    async def agentrl(model_answer: str, ground_truth: dict[str, str]) -> Any:
        return given_score

    MCPScorerFactory.register_scorer("agentrl", agentrl)
    found = [await score_answer(name, REQUEST) for name in ("plain", "whole", "agentrl")]
    found += await score_group("of_all", GROUP)
    assert [(type(one.value), one.value) for one in found] == [(float, expected)] * 4
    assert found[1].actors == {"A": expected}


@pytest.mark.parametrize("case", [*UNUSABLE, "nothing"])
async def test_what_the_trainer_cannot_use_fails_the_episode_and_never_the_sampler(case: str) -> None:
    given_score = UNUSABLE.get(case)

    @register_scorer("plain")
    def plain(request: ScoringRequest) -> Any:
        return given_score

    @register_scorer("whole")
    def whole(request: ScoringRequest) -> Score:
        return Score(1.0, others={"b": given_score})

    @register_group_scorer("of_all")
    def of_all(request: GroupRequest) -> list[Any]:
        return [given_score]

    for _ in range(MAX_MISTAKES + 1):
        for name in ("plain", "whole"):
            with pytest.raises(ScorerFailed, match=f"scorer '{name}' returned .*; expected a finite number from -1.8e"):
                await score_answer(name, REQUEST)
        with pytest.raises(ScorerFailed, match=r"'of_all' returned .*; expected a finite number"):
            await score_group("of_all", GROUP)


def test_a_weighted_sum_that_the_trainer_cannot_use_is_refused() -> None:
    assert weighted_sum([(2.0, 0.5)]) == 1.0
    for parts in ([(1e300, 1e10)], [(2.0, 1.5e19)], [(1.7e308, 1.0), (1.7e308, 1.0)]):
        with pytest.raises(ScorerFailed, match="no usable score; expected a finite number"):
            weighted_sum(parts)


@pytest.mark.parametrize("case", ["numpy float32", "torch scalar", "Decimal"])
async def test_an_agents_number_counts_whatever_its_type(store: Store, case: str) -> None:
    record, _, _ = await played(store, ScriptedEngine(["4"]), returning(NUMBERS[case][0]))
    assert record.score == NUMBERS[case][1]


@pytest.mark.parametrize("case", ["NaN", "1e40", "a list", "an array"])
async def test_an_agents_unusable_number_fails_its_episode_alone(store: Store, case: str) -> None:
    async with an_episode(store, ScriptedEngine(["4"]), returning(UNUSABLE[case])) as sampler:
        await play(sampler)
        record = await store.records.get(sampler.claim.record_id)
    assert record is not None
    assert (record.status, record.score) == (RecordStatus.FAILED, None)
    assert "the agent returned" in str(record.error)
    assert "expected a finite number from -1.8e" in str(record.error)


@pytest.mark.parametrize("score", [1e40, -1.9e19, 1e308])
async def test_a_posted_score_that_the_trainer_cannot_use_is_refused(store: Store, score: float) -> None:
    async def agent(task: AgentTask) -> None:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {task.api_key}"}, timeout=60) as client:
            body = {"model": "main", "messages": [{"role": "user", "content": "2+2?"}]}
            reply = (await client.post(f"{task.base_url}/chat/completions", json=body)).json()
            for turn in ({}, {"turn": reply["id"]}):
                refused = await client.post(f"{task.url}/score", json={"score": score, **turn})
                assert refused.status_code == 400
                assert "expected a finite number from -1.8e" in refused.text
            (await client.post(f"{task.url}/score", json={"score": 0.5})).raise_for_status()

    record, _, _ = await played(store, ScriptedEngine(["4"]), agent)
    assert record.score == 0.5
    with pytest.raises(
        FeedbackRefused, match=r"score is .*less than or equal to 18446|score is .*greater than or equal to -18446"
    ):
        await give_feedback(store, record.id, score)


@pytest.mark.parametrize("reward", [1e40, math.nan, 1e308])
def test_a_worlds_reward_that_the_trainer_cannot_use_is_refused(reward: float) -> None:
    for told in ({"reward": reward}, {"metrics": {"score": reward}}, {"rewards": {"0": reward}}):
        with pytest.raises(EnvironmentFailed, match=r"; expected a finite number from -1\.8e"):
            step_of({"messages": [], "status": "completed", "finish": True, **told}, "http://world")


@given(st.floats() | st.integers() | st.decimals() | st.fractions())
def test_every_number_is_used_as_it_is_or_refused(value: Any) -> None:
    found = real_number(value)
    if found is None or abs(found) > LARGEST_SCORE:
        with pytest.raises(ValueError, match="; expected a finite number from"):
            usable_score(value)
    else:
        assert usable_score(value) == found == float(value)
        assert math.isfinite(np.float32(found) ** 2)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=8))
def test_unequal_scores_never_have_no_advantage(rewards: list[float]) -> None:
    for norm in (mean_baseline, zscore, leave_one_out):
        found = norm(rewards)
        assert not any(math.isnan(a) for a in found)
        assert any(found) == (min(rewards) != max(rewards))
    assert all(map(math.isfinite, zscore(rewards)))


def test_the_spread_of_a_batch_is_finite_for_every_size_of_reward() -> None:
    assert _sample_std([1e200, 0.0]) == pytest.approx(1e200 / math.sqrt(2))
    assert _sample_std([1e-200, 0.0]) == pytest.approx(1e-200 / math.sqrt(2))


def returning(value: Any) -> Any:
    async def agent(task: AgentTask) -> Any:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {task.api_key}"}, timeout=60) as client:
            body = {"model": "main", "messages": [{"role": "user", "content": "2+2?"}]}
            (await client.post(f"{task.base_url}/chat/completions", json=body)).raise_for_status()
        return value

    return agent
