"""Judges see the images of the question and of the conversation; a prompt without images is the text that it was."""

from dataclasses import replace
from typing import Any

import pytest

from sampler.core.api_models.images import MOST_SENT
from sampler.core.scorers.registry import score_group
from sampler.core.scorers.shown_images import later_images
from sampler.scorers import GroupEpisode, GroupRequest, ScoringRequest, score_answer
from tests.sampler.agents.endpoints import endpoint
from tests.sampler.agents.test_models_that_see import DIGESTS, reference, seeing, url_of

QUERY = [{"type": "text", "text": "Which is red?"}, reference(DIGESTS[0])]
PAYLOAD: dict[str, Any] = {"query_blocks": QUERY}
MESSAGES = (
    {"role": "user", "content": QUERY},
    {"role": "assistant", "content": "I look."},
    {"role": "tool", "content": [{"type": "text", "text": "page"}, reference(DIGESTS[1])]},
    {"role": "tool", "content": [reference(DIGESTS[1])]},
)
SAYS = {
    "judge_score": 'says {"score": 7, "reason": "r"}',
    "judge_rubric": 'says {"met": [true], "reason": "r"}',
    "agentcpm": "says Correct",
}


async def judged(scorer: str, request: ScoringRequest, *, sees: bool = True) -> tuple[float, Any]:
    """The score, and the content of the judge's message."""
    async with endpoint(SAYS[scorer]) as service:
        judge = seeing([service], [sees])
        score = await score_answer(scorer, replace(request, judge=judge))
        await judge.close()
    return score.value, service.requests[0][1]["messages"][-1]["content"]


def images_in(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for block in content if block["type"] == "image_url"]


@pytest.mark.parametrize(("scorer", "value"), [("judge_score", 0.7), ("judge_rubric", 1.0), ("agentcpm", 1.0)])
async def test_a_judge_sees_the_question_and_what_the_model_saw_each_image_once(scorer: str, value: float) -> None:
    payload = PAYLOAD | ({"metadata": {"rubric": ["it is red"]}} if scorer == "judge_rubric" else {})
    request = ScoringRequest("2", ("2",), "Which is red?", "It is 2", payload=payload, messages=MESSAGES)
    score, content = await judged(scorer, request)
    assert (score, images_in(content)) == (value, [url_of(DIGESTS[0]), url_of(DIGESTS[1])])
    score, content = await judged(scorer, request, sees=False)
    assert (score, content.count("[image: 64 x 48, not shown]")) == (value, 2), "lines for a judge of texts"
    assert "Which is red?" in content


async def test_a_prompt_without_images_is_a_text() -> None:
    request = ScoringRequest("2", ("2",), "1+1?", "It is 2")
    for scorer in ("judge_score", "agentcpm"):
        _, content = await judged(scorer, request)
        assert isinstance(content, str)
    _, content = await judged("judge_score", request)
    assert content.startswith("Question:\n1+1?\n\nA right answer is '2'.\n\nRubric:\n")


async def test_a_judge_of_groups_sees_the_question() -> None:
    episodes = tuple(GroupEpisode(f"r{k}", 0.0, None, f"reply {k}") for k in range(2))
    async with endpoint('says {"better": 1}') as service:
        judge = seeing([service], [True])
        await score_group("judge_pairs", GroupRequest((), "Which is red?", episodes, PAYLOAD, judge))
        await judge.close()
    content = service.requests[0][1]["messages"][0]["content"]
    assert images_in(content) == [url_of(DIGESTS[0])]
    assert [block["text"] for block in content if block["type"] == "text"][:2] == ["Question:\n", "Which is red?"]


def test_a_long_conversation_shows_its_last_images_after_those_of_the_question() -> None:
    messages = [{"role": "user", "content": [reference(sha256)]} for sha256 in DIGESTS]
    seen = later_images(PAYLOAD, messages)
    assert [image["sha256"] for image in seen] == DIGESTS[-(MOST_SENT - 1) :]
