"""The scorer `agentcpm`: the scorer agent decides whether the answer is right."""

from sampler.core.errors import UnusableTask
from sampler.core.scorers.registry import Score, ScoringRequest, register_scorer
from sampler.core.scorers.shown_images import later_images, question_images

_MAX_SHOWN_CHARS = 2000


@register_scorer("asearcher", needs_judge=True)  # AgentRL's older name
@register_scorer("agentcpm", needs_judge=True)
async def agentcpm(request: ScoringRequest) -> Score:
    """1 if the judge calls the answer correct, else 0. The details name the judge and earlier failures."""
    assert request.judge is not None, "needs_judge"
    if not any(one.strip() for one in request.accepted):
        raise UnusableTask("agentcpm: the task has no answer to compare with; give it one, or another scorer")
    images = [*question_images(request.payload), *later_images(request.payload, request.messages)]
    verdict = await request.judge.verdict(request.query, " or ".join(request.accepted), request.answer or "", images)
    word = "correct" if verdict.is_correct else "incorrect"
    return Score(
        float(verdict.is_correct),
        {
            "verdict": word,
            "reason": f"the judge calls it {word}",
            "reply": verdict.reply[:_MAX_SHOWN_CHARS],
            "judged_by": verdict.use.model_dump(),
        },
    )
