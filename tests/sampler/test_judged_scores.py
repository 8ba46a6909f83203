"""Scores of the judge, and of scorers that a user registers: a failure is never a number."""

from dataclasses import replace
from pathlib import Path

import pytest

from sampler.core.errors import AgentFailed, ScorerFailed, UnusableTask
from sampler.core.scorers import registry
from sampler.scorers import MCPScorerFactory, Score, ScoringRequest, default_scorer, import_scorers, score_answer
from shared.errors import ConfigError
from tests.sampler.agents.agents import judge
from tests.sampler.agents.endpoints import endpoint


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten with it."""
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))


async def test_agentcpm_scores_by_the_judges_verdict_and_names_its_model() -> None:
    async with endpoint("status 500", "status 500", "judges") as one, endpoint("judges") as two:
        own = judge(one, two)
        scores = [
            await score_answer("agentcpm", ScoringRequest(answer, ("4",), "2+2?", judge=own))
            for answer in ("It is 4", "It is 5", None)
        ]
        await own.close()
    assert [score.value for score in scores] == [1.0, 0.0, 0.0]
    assert scores[0].details["verdict"] == "correct"
    assert scores[0].details["judged_by"]["model"] == "m2"
    assert len(scores[0].details["judged_by"]["failures"]) == 2
    assert scores[1].details["judged_by"]["model"] == "m1"
    assert [score.details["reason"] for score in scores] == [
        "the judge calls it correct",
        "the judge calls it incorrect",
        "no answer",
    ]
    assert {(score.details["scorer"], *score.details["expected"]) for score in scores} == {("agentcpm", "4")}


async def test_agentcpm_gives_no_score_without_a_verdict_a_judge_or_a_truth() -> None:
    async with endpoint("status 500") as service:
        own = judge(service)
        with pytest.raises(AgentFailed, match="no model of scorer_agent"):
            await score_answer("agentcpm", ScoringRequest("4", ("4",), judge=own))
        with pytest.raises(UnusableTask, match="no answer to compare with"):
            await score_answer("agentcpm", ScoringRequest("4", (" ",), judge=own))
        await own.close()
    with pytest.raises(ConfigError, match="'agentcpm' needs a judge; set --agent_config_path"):
        await score_answer("agentcpm", ScoringRequest("4", ("4",)))


async def test_the_judge_is_the_default_scorer_if_configured() -> None:
    own = judge(models=[{"model": "m", "base_url": "http://x"}])
    names = [default_scorer(None, None), default_scorer(None, own), default_scorer("math", own)]
    assert names == ["exact_match", "agentcpm", "math"]


@pytest.mark.usefixtures("own_names")
async def test_the_factory_accepts_functions_of_the_answer_and_the_truth() -> None:
    async def two(model_answer: str, ground_truth: dict[str, str]) -> float:
        return float(model_answer == ground_truth["answer"] and ground_truth["query"] == "q")

    async def three(model_answer: str, ground_truth: dict[str, str], scorer_agent_config: dict[str, object]) -> float:
        return 0.5 if scorer_agent_config.get("models") else 0.25

    async def one(request: ScoringRequest) -> Score:
        return Score(0.75, {"reply": request.reply})

    for name, function in (("two", two), ("three", three), ("one", one)):
        MCPScorerFactory.register_scorer(name, function)
        MCPScorerFactory.register_scorer(name, function)
    asked = ScoringRequest("4", ("4",), "q", "<answer>4</answer>")
    judged = replace(asked, judge=judge(models=[{"model": "m", "base_url": "http://x"}]))
    values = [(await score_answer(name, asked)).value for name in ("two", "three", "one")]
    assert values == [1.0, 0.25, 0.75]
    assert (await score_answer("three", judged)).value == 0.5
    with pytest.raises(ConfigError, match="'two' is registered twice"):
        MCPScorerFactory.register_scorer("two", three)


@pytest.mark.usefixtures("own_names")
async def test_the_factory_rejects_uncallable_scorers_and_never_turns_a_failure_into_a_number() -> None:
    with pytest.raises(ConfigError, match="expected an async function of"):
        MCPScorerFactory.register_scorer("plain", lambda a, b: 1.0)

    async def none(model_answer: str, ground_truth: dict[str, str]) -> None:
        return None

    MCPScorerFactory.register_scorer("none", none)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ScorerFailed, match="none"):
        await score_answer("none", ScoringRequest("4", ("4",)))


@pytest.mark.usefixtures("own_names")
async def test_modules_of_the_configuration_register_their_scorers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tests_own_scorers.py").write_text(
        "from sampler.scorers import Score, ScoringRequest, register_scorer\n\n"
        "@register_scorer('own')\nasync def own(request: ScoringRequest) -> Score:\n    return Score(0.5)\n"
    )
    (tmp_path / "tests_broken_scorers.py").write_text("1 / 0\n")
    import_scorers(["tests_own_scorers"])
    assert (await score_answer("own", ScoringRequest("x", ()))).value == 0.5
    with pytest.raises(ConfigError, match="scorer_modules: 'tests_no_scorers' cannot be imported: ModuleNotFoundError"):
        import_scorers(["tests_no_scorers"])
    with pytest.raises(
        ConfigError, match="scorer_modules: 'tests_broken_scorers' cannot be imported: ZeroDivisionError"
    ):
        import_scorers(["tests_broken_scorers"])
