"""Scorers that ask the scorer agent for more than a verdict: a number, or which items of a rubric a reply meets.

judge_score    a whole number from 0 to 10, as a number from 0 to 1; `metadata.rubric`, a text, says what counts
judge_rubric   which items of `metadata.rubric`, a list, the reply meets: the share of their weights

Both read the whole last reply, and see the images of the question and of the conversation.
With several `votes` of the scorer agent, the score is their mean, and the metric
`judge_disagreement` the mean difference of two of them.
A reply of the judge without the JSON object that is asked for is asked for again.
"""

import asyncio
import itertools
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.api_models.json_reply import last_object
from sampler.core.api_models.pool import Answer, Unreadable
from sampler.core.api_models.quoting import SHOWN_DIGITS, UNTRUSTED, quoted_reply
from sampler.core.errors import UnusableTask
from sampler.core.scorers.details import DISAGREEMENT, VOTES, accepted_ones
from sampler.core.scorers.registry import Score, ScoringRequest, is_finite_number, register_scorer
from sampler.core.scorers.shown_images import judge_content, later_images
from shared.outside_text import clipped
from shared.tasks.rubrics import RUBRIC_KEY, rubric_problem

MAX_REPLY_CHARS = 16_000  # shown of the reply
BEST = 10
RUBRIC = "Is the reply correct? Then: is it clear and to the point?"
ASK_SCORE = (
    f"How good is the reply, from 0 to {BEST}? Answer with one JSON object and nothing else: "
    f'{{"score": a whole number from 0 to {BEST}, "reason": one sentence}}'
)
ASK_ITEMS = (
    "Which items does the reply meet? Answer with one JSON object and nothing else: "
    '{{"met": a list of {n} values, true or false, one for each item in order, "reason": one sentence}}'
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge said, as it was asked."""

    value: Any
    reason: str


@register_scorer("judge_score", needs_answer=False, needs_judge=True)
async def judge_score(request: ScoringRequest) -> Score:
    """The judge's number divided by 10."""
    rubric = (request.payload.get("metadata") or {}).get(RUBRIC_KEY) or RUBRIC
    if not isinstance(rubric, str):
        raise UnusableTask("judge_score: metadata.rubric is not a text; expected one, or the scorer judge_rubric")
    votes = await _ask(request, f"Rubric:\n{rubric}", ASK_SCORE, _number)
    return _agreed(
        [(one.value.value / BEST, f"{one.value.value} of {BEST}: {one.value.reason}", one, {}) for one in votes]
    )


@register_scorer("judge_rubric", needs_answer=False, needs_judge=True)
async def judge_rubric(request: ScoringRequest) -> Score:
    """The share of the weights of the items that are met. Raises UnusableTask for a task without a list of items."""
    given: Any = (request.payload.get("metadata") or {}).get(RUBRIC_KEY)
    problem = rubric_problem(given)
    if problem is not None:
        raise UnusableTask(f"judge_rubric: {problem}")
    items = [one if isinstance(one, dict) else {"item": one} for one in given]
    weights = [float(one.get("weight", 1)) for one in items]
    listed = "\n".join(f"{k}. {one['item']}" for k, one in enumerate(items, start=1))
    question = ASK_ITEMS.format(n=len(items))
    votes = await _ask(request, f"Items:\n{listed}", question, lambda text: _items(text, len(items)))
    values = []
    for one in votes:
        verdict = one.value
        earned = math.fsum(weight for weight, is_met in zip(weights, verdict.value, strict=True) if is_met)
        met = [
            {"item": clipped(item["item"], 200), "met": is_met}
            for item, is_met in zip(items, verdict.value, strict=True)
        ]
        reason = f"{sum(verdict.value)} of {len(items)} items: {verdict.reason}"
        values.append((earned / math.fsum(weights), reason, one, {"items": met}))
    return _agreed(values)


def _agreed(votes: Sequence[tuple[float, str, Answer[Judged], dict[str, Any]]]) -> Score:
    """Value, reason, answer and further details of each vote."""
    if len(votes) == 1:
        ((value, reason, answer, more),) = votes
        return Score(value, {"reason": reason, **more, "judged_by": answer.use.model_dump()})
    values = [value for value, _, _, _ in votes]
    apart = [abs(a - b) for a, b in itertools.combinations(values, 2)]
    votes_shown = [
        {"value": value, "reason": reason, **more, "judged_by": answer.use.model_dump()}
        for value, reason, answer, more in votes
    ]
    shown = " | ".join(reason for _, reason, _, _ in votes)
    disagreement = math.fsum(apart) / len(apart)
    return Score(math.fsum(values) / len(values), {"reason": shown, DISAGREEMENT: disagreement, VOTES: votes_shown})


async def _ask(request: ScoringRequest, rubric: str, question: str, read: Any) -> list[Answer[Judged]]:
    """A vote of each. Raises AgentFailed where one of them is not given: the others are not taken for it."""
    assert request.judge is not None, "needs_judge"
    parts = [f"A right answer is {accepted_ones(request.accepted)}."] if request.accepted else []
    mark = secrets.token_hex(SHOWN_DIGITS // 2)
    parts += [
        rubric,
        UNTRUSTED.format(mark=mark),
        quoted_reply("reply", mark, request.answer_text, MAX_REPLY_CHARS),
        question,
    ]
    seen = later_images(request.payload, request.messages)
    content = judge_content(request.query, request.payload, seen, parts)
    judge, messages = request.judge, [{"role": "user", "content": content}]
    async with asyncio.TaskGroup() as group:
        votes = [group.create_task(judge.ask_for(messages, read, first=k)) for k in range(judge.config.votes)]
    return [vote.result() for vote in votes]


def _number(text: str) -> Judged:
    verdict = last_object(text)
    score: Any = verdict.get("score")
    if isinstance(score, bool) or not is_finite_number(score) or score != round(score) or not 0 <= score <= BEST:
        raise Unreadable(f'That is no score. Answer with {{"score": a whole number from 0 to {BEST}}}.')
    return Judged(int(score), _reason(verdict))


def _items(text: str, n: int) -> Judged:
    verdict = last_object(text)
    met = verdict.get("met")
    if not isinstance(met, list) or len(met) != n or not all(isinstance(one, bool) for one in met):
        raise Unreadable(
            f'That does not fit the {n} items. Answer with {{"met": […]}}: true or false for each, in order.'
        )
    return Judged(met, _reason(verdict))


def _reason(verdict: dict[str, Any]) -> str:
    return clipped(str(verdict.get("reason") or "no reason given"), 500)
