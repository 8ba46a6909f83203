"""Judges that give numbers and items of a rubric."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from sampler.core.errors import AgentFailed, UnusableTask
from sampler.core.scorers.weighted import judge_metrics
from sampler.scorers import Score, ScoringRequest, score_answer
from shared.documents import TaskPayload
from shared.tasks.checks import Samplers, TaskCheck
from shared.tasks.rubrics import MOST_ITEMS
from tests.sampler.agents.agents import judge
from tests.sampler.agents.endpoints import endpoint

ITEMS = ["is right", {"item": "is short", "weight": 3}]


async def scored(name: str, rubric: Any, *behaviors: str) -> tuple[Any, Any]:
    """The score, and the judge's endpoint."""
    async with endpoint(*behaviors) as service:
        own = judge(service)
        payload = {"metadata": {} if rubric is None else {"rubric": rubric}}
        request = ScoringRequest(None, ("4",), query="2+2?", reply="it is 4", payload=payload, judge=own)
        try:
            return await score_answer(name, request), service
        finally:
            await own.close()


async def test_a_judges_number_is_the_score_and_its_reason_is_kept() -> None:
    score, service = await scored(
        "judge_score", "Be kind.", 'says <think>{"score": 1}</think>Well: {"score": 7, "reason": "curt"}'
    )
    assert (score.value, score.details["reason"]) == (0.7, "7 of 10: curt")
    assert score.details["judged_by"]["model"] == "m1"
    (prompt,) = service.prompts()
    assert all(text in prompt for text in ("Be kind.", "2+2?", "it is 4", "'4'"))


async def test_the_score_is_the_share_of_the_weights_of_the_items_that_are_met() -> None:
    score, service = await scored("judge_rubric", ITEMS, 'says {"met": [true, false]}')
    assert (score.value, score.details["reason"]) == (0.25, "1 of 2 items: no reason given")
    assert score.details["items"] == [{"item": "is right", "met": True}, {"item": "is short", "met": False}]
    assert "1. is right\n2. is short" in service.prompts()[0]


@pytest.mark.parametrize(
    ("name", "said", "right"),
    [
        *(
            (("judge_score", said, '{"score": 10}'))
            for said in ('{"score": 11}', '{"score": 7.5}', '{"score": true}', "7", "{}")
        ),
        *(
            (("judge_rubric", said, '{"met": [true, true]}'))
            for said in ('{"met": [true]}', '{"met": [1, 0]}', "true, true")
        ),
    ],
)
async def test_what_is_not_as_asked_is_asked_for_again_and_is_never_a_number(name: str, said: str, right: str) -> None:
    rubric = ITEMS if name == "judge_rubric" else None
    score, service = await scored(name, rubric, f"says {said}", f"says {right}")
    assert (score.value, len(service.requests)) == (1.0, 2)
    with pytest.raises(AgentFailed, match="no model of scorer_agent gave an answer"):
        await scored(name, rubric, f"says {said}")


@pytest.mark.parametrize(
    ("rubric", "said"),
    [
        (None, "metadata.rubric is no list of items; expected 1 to 50 texts"),
        ("be good", "metadata.rubric is no list of items"),
        ([], "metadata.rubric is no list of items"),
        (["x"] * (MOST_ITEMS + 1), "metadata.rubric is no list of items"),
        ([" "], "metadata.rubric.0 has no text; expected a text"),
        (["a", {"item": "b", "weight": 0}], "metadata.rubric.1.weight is 0; expected a number above 0"),
        (["a", {"item": "b", "weight": True}], "metadata.rubric.1.weight is True"),
    ],
)
async def test_a_wrong_rubric_is_refused_at_import_and_never_scored(rubric: Any, said: str) -> None:
    payload = TaskPayload(query="q", scorer="judge_rubric", metadata={} if rubric is None else {"rubric": rubric})
    (problem,) = TaskCheck(Samplers(knows_scorers=True, has_judge=True)).problems(payload)
    assert problem.startswith(f'"scorer" is "judge_rubric": {said}')
    with pytest.raises(UnusableTask, match=r"judge_rubric: metadata\.rubric"):
        await scored("judge_rubric", rubric, "says 1")


async def test_a_text_is_the_rubric_of_a_number_alone() -> None:
    with pytest.raises(UnusableTask, match=r"judge_score: metadata\.rubric is not a text"):
        await scored("judge_score", ITEMS, 'says {"score": 1}')


async def voted(name: str, rubric: Any, votes: int, *behaviors: tuple[str, ...]) -> tuple[Any, list[int]]:
    """The score, and how many requests each judge had."""
    async with AsyncExitStack() as opened:
        services = [await opened.enter_async_context(endpoint(*said)) for said in behaviors]
        own = judge(*services, votes=votes)
        opened.push_async_callback(own.close)
        payload = {"metadata": {"rubric": rubric}}
        request = ScoringRequest(None, ("4",), query="2+2?", reply="it is 4", payload=payload, judge=own)
        return await score_answer(name, request), [len(one.requests) for one in services]


async def test_several_judges_vote_and_their_disagreement_is_a_metric() -> None:
    said = (('says {"score": 2, "reason": "curt"}',), ('says {"score": 8}',), ('says {"score": 8}',))
    score, asked = await voted("judge_score", "Be kind.", 3, *said)
    assert (score.value, asked) == (pytest.approx(0.6), [1, 1, 1])
    assert [one["value"] for one in score.details["votes"]] == [0.2, 0.8, 0.8]
    metrics = judge_metrics([score])
    assert metrics["judge_disagreement"] == pytest.approx(0.4)
    use = score.details["votes"][0]["judged_by"]
    assert metrics["judge_tokens"] == 3 * (use["prompt_tokens"] + use["completion_tokens"])


async def test_one_judge_is_asked_as_often_as_it_has_votes() -> None:
    score, asked = await voted("judge_rubric", ITEMS, 4, ('says {"met": [true, false]}',))
    assert (score.value, asked, score.details["judge_disagreement"]) == (0.25, [4], 0.0)
    assert score.details["votes"][3]["items"][0] == {"item": "is right", "met": True}


async def test_a_vote_that_is_not_given_is_no_score() -> None:
    with pytest.raises(AgentFailed, match="no model of scorer_agent gave an answer"):
        await voted("judge_score", "Be kind.", 2, ('says {"score": 2}', "says what?", "says what?", "says what?"))


def test_what_a_scorer_of_ones_own_calls_votes_is_no_vote() -> None:
    assert judge_metrics([Score(1.0, {"votes": 3, "judge_disagreement": "much"}), Score(1.0, {"votes": ["yes"]})]) == {}
