"""Users' scorers: a mistake is reported with its line, and a scorer that calls the judge directly is authenticated."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI

from sampler.core.errors import ScorerFailed
from sampler.core.scorers import registry
from sampler.core.scorers.registry import MAX_MISTAKES
from sampler.scorers import MCPScorerFactory, Score, ScoringRequest, register_scorer, score_answer
from shared.errors import OwnCodeFailed
from tests.sampler.agents.agents import judge, models
from tests.sampler.agents.endpoints import endpoint


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten with it."""
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))


def request(answer: str | None, *accepted: str) -> ScoringRequest:
    return ScoringRequest(answer=answer, accepted=accepted)


async def test_a_mistake_in_a_scorer_is_reported_with_its_line() -> None:
    async def crashes(model_answer: str, ground_truth: dict[str, str]) -> float:
        return float(ground_truth["anwser"])

    async def words(model_answer: str, ground_truth: dict[str, str]) -> float:
        return "yes"  # type: ignore[return-value]  # what is tested

    async def groups(request: ScoringRequest) -> Score:
        async with asyncio.TaskGroup() as group:
            group.create_task(crashes("4", {}))
        return Score(1.0)

    MCPScorerFactory.register_scorer("crashes", crashes)
    MCPScorerFactory.register_scorer("words", words)
    register_scorer("groups")(groups)
    here = "; at tests/sampler/test_own_scorers.py:"
    for name, error, said, line in (
        ("crashes", ScorerFailed, f"scorer 'crashes' crashed: KeyError: 'anwser'{here}", 'in crashes: return float('),
        ("groups", ScorerFailed, f"scorer 'groups' crashed: KeyError: 'anwser'{here}", 'in crashes: return float('),
        ("words", ScorerFailed, "scorer 'words' returned 'yes'; expected a finite number from -1.8e", "async def words("),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            await score_answer(name, request("4", "4"))
        assert str(caught.value).startswith(said)
        assert line in str(caught.value)


async def test_a_scorers_own_judge_receives_the_key_and_no_output_contains_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TESTS_JUDGE_KEY", "sk-tests-0123456789")

    async def as_in_agentrl(model_answer: str, ground_truth: dict[str, str], scorer_agent_config: Any) -> Score:
        model = scorer_agent_config["models"][0]
        async with AsyncOpenAI(api_key=model["api_key"], base_url=model["base_url"]) as client:
            asked: Any = {"model": model["model"], "messages": [{"role": "user", "content": "right?"}]}
            reply = await client.chat.completions.create(**asked)
        assert "sk-tests" not in repr(scorer_agent_config)
        return Score(1.0, {"reply": reply.choices[0].message.content, "config": scorer_agent_config})

    @register_scorer("asks", needs_judge=True)
    async def asks(request: ScoringRequest) -> Score:
        assert request.judge is not None
        text = await request.judge.ask([{"role": "user", "content": "right?"}])
        async with request.judge.client() as client:
            reply = await client.chat.completions.create(model="m1", messages=[{"role": "user", "content": "sure?"}])
        return Score(float(text == reply.choices[0].message.content))

    @register_scorer("leaks", needs_judge=True)
    async def leaks(request: ScoringRequest) -> Score:
        assert request.judge is not None
        raise ValueError(f"wrong key {request.judge.keys()[0]}")

    MCPScorerFactory.register_scorer("as_in_agentrl", as_in_agentrl)
    async with endpoint("says yes") as service:
        own = judge(models=[*models([service], api_key="${TESTS_JUDGE_KEY}")])
        judged = replace(request("4", "4"), judge=own)
        score = await score_answer("as_in_agentrl", judged)
        assert score.value == 1.0
        assert score.details["config"]["models"][0]["api_key"] == "***"
        with pytest.raises(ScorerFailed, match=r"scorer 'leaks' crashed: ValueError: wrong key \*\*\*; at "):
            await score_answer("leaks", judged)
        for _ in range(2):  # a client that was closed is replaced
            assert (await score_answer("asks", judged)).value == 1.0
        await own.close()
    shown = [headers.get("authorization") for headers, _ in service.requests]
    assert shown == ["Bearer sk-tests-0123456789"] * 5


async def test_a_scorer_that_only_makes_mistakes_is_not_a_transient_failure() -> None:
    """One that has worked, or whose errors may be the network's, is retried as an infrastructure failure."""
    answers: list[str] = []

    @register_scorer("fragile")
    async def fragile(request: ScoringRequest) -> Score:
        if request.answer == "away":
            raise ConnectionError("no judge")
        return Score(float(request.answer == answers[0]))

    for _ in range(2 * MAX_MISTAKES):
        with pytest.raises(ScorerFailed, match="no judge"):
            await score_answer("fragile", request("away"))
    for _ in range(MAX_MISTAKES - 1):
        with pytest.raises(ScorerFailed, match="IndexError"):
            await score_answer("fragile", request("4"))
    with pytest.raises(OwnCodeFailed, match=r"IndexError: .*fragile: .* \(5 times, and it never gave a score\)"):
        await score_answer("fragile", request("4"))
    answers.append("4")
    assert (await score_answer("fragile", request("4"))).value == 1.0
    answers.clear()
    with pytest.raises(ScorerFailed, match="IndexError"):
        await score_answer("fragile", request("4"))
