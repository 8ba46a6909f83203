"""Group scorers: an episode's score depends on the other episodes of its group.

judge_rank    the judge puts all replies in order, twice, the second time in reverse: 1 for the best, 0 for the worst
judge_pairs   the judge compares every two replies: the share of the comparisons that a reply won
diversity     1 minus the mean likeness to the other replies (shared word pairs), without a judge

The rubric is `metadata.rubric` of the task. Judges see the images of the question, not those of each conversation.
The order in which replies are shown is drawn by their records' ids, so that no slot
has an advantage and a repetition asks the same.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from sampler.core.api_models import Judge
from sampler.core.api_models.json_reply import last_object
from sampler.core.api_models.pool import Answer, Unreadable
from sampler.core.api_models.quoting import UNTRUSTED, mark_of, quoted_reply
from sampler.core.scorers.details import accepted_ones
from sampler.core.scorers.registry import GroupEpisode, GroupRequest, Score, register_group_scorer
from sampler.core.scorers.shown_images import judge_content
from shared.tasks.rubrics import RUBRIC_KEY

MAX_REPLY_CHARS = 8_000  # shown of one reply
RUBRIC = "Prefer replies that are correct, then those that are clear and to the point."
ASK_ORDER = (
    'Put all {n} replies in order, the best first. Answer with one JSON object and nothing else: {{"ranking": [numbers of the '
    "replies, each once]}}"
)
ASK_BETTER = 'Which reply is better? Answer with one JSON object and nothing else: {"better": 1} or {"better": 2}'


@register_group_scorer("judge_rank", needs_judge=True)
async def judge_rank(request: GroupRequest) -> list[Score]:
    """The mean of two rankings, as a number from 0 to 1. A group of one gets 0.

    The second ranking is asked for in reverse order: judges prefer what they read first. The metric `disagreement` is the mean
    difference of an episode's two values.
    """
    assert request.judge is not None, "needs_judge"
    n = len(request.episodes)
    if n < 2:
        return [Score(0.0, {"reason": "nothing to compare with"})] * n
    order = _drawn(request.episodes)
    votes, answers = [], []
    for shown in (order, order[::-1]):
        replies = [request.episodes[at] for at in shown]
        answer = await _ask(request.judge, request, replies, ASK_ORDER.format(n=n), lambda text: _ranking(text, n))
        places = {shown[number - 1]: place for place, number in enumerate(answer.value)}
        votes.append([1 - places[at] / (n - 1) for at in range(n)])
        answers.append(answer)
    apart = math.fsum(abs(a - b) for a, b in zip(*votes, strict=True)) / n
    return [
        Score((a + b) / 2, {"reason": f"ranked {_place(a, n)} and {_place(b, n)} of {n}"} | _use(answers, apart))
        for a, b in zip(*votes, strict=True)
    ]


@register_group_scorer("judge_pairs", needs_judge=True)
async def judge_pairs(request: GroupRequest) -> list[Score]:
    """The share of its n − 1 comparisons that a reply won. n (n − 1) / 2 questions. A group of one gets 0.

    The metric `disagreement` is the share of triples in which the judge preferred a to b, b to c and c to a.
    """
    assert request.judge is not None, "needs_judge"
    n = len(request.episodes)
    if n < 2:
        return [Score(0.0, {"reason": "nothing to compare with"})] * n
    order, wins, answers = _drawn(request.episodes), [0] * n, []
    beats: set[tuple[int, int]] = set()
    for k, pair in enumerate(itertools.combinations(order, 2)):
        shown = pair if k % 2 == 0 else pair[::-1]  # so that no reply is always the first of its pairs
        replies = [request.episodes[at] for at in shown]
        answer = await _ask(request.judge, request, replies, ASK_BETTER, _better)
        winner, loser = shown[answer.value - 1], shown[2 - answer.value]
        wins[winner] += 1
        beats.add((winner, loser))
        answers.append(answer)
    use = _use(answers, _circular(beats, n))
    return [Score(won / (n - 1), {"reason": f"won {won} of {n - 1} comparisons"} | use) for won in wins]


@register_group_scorer("diversity")
async def diversity(request: GroupRequest) -> list[Score]:
    """1 − the mean Jaccard likeness of the replies' word pairs to those of the other replies. A group of one gets 0."""
    pairs = [_word_pairs(episode.answer_text) for episode in request.episodes]
    n = len(pairs)
    if n < 2:
        return [Score(0.0, {"reason": "nothing to compare with"})] * n
    scores = []
    for at, own in enumerate(pairs):
        alike = math.fsum(_jaccard(own, other) for k, other in enumerate(pairs) if k != at) / (n - 1)
        scores.append(Score(1 - alike, {"reason": f"likeness to the others {alike:.3g}"}))
    return scores


async def _ask(
    judge: Judge, request: GroupRequest, replies: Sequence[GroupEpisode], question: str, read: Any
) -> Answer[Any]:
    rubric = (request.payload.get("metadata") or {}).get(RUBRIC_KEY) or RUBRIC
    parts = [f"A right answer is {accepted_ones(request.accepted)}."] if request.accepted else []
    parts += [f"Rubric:\n{rubric if isinstance(rubric, str) else json.dumps(rubric)}"]
    mark = mark_of(*(one.record for one in request.episodes))
    parts += [UNTRUSTED.format(mark=mark)]
    parts += [
        quoted_reply(f"reply {k}", mark, one.answer_text, MAX_REPLY_CHARS) for k, one in enumerate(replies, start=1)
    ]
    content = judge_content(request.query, request.payload, (), [*parts, question])
    return await judge.ask_for([{"role": "user", "content": content}], read)


def _drawn(episodes: Sequence[GroupEpisode]) -> list[int]:
    return sorted(range(len(episodes)), key=lambda at: hashlib.sha256(episodes[at].record.encode()).digest())


def _ranking(text: str, n: int) -> list[int]:
    order = last_object(text).get("ranking")
    if not isinstance(order, list) or any(type(k) is not int for k in order) or sorted(order) != list(range(1, n + 1)):
        raise Unreadable(f'That is no ranking. Answer with {{"ranking": […]}}: the numbers 1 to {n}, each once.')
    return order


def _better(text: str) -> int:
    pick = last_object(text).get("better")
    if isinstance(pick, bool) or pick not in (1, 2):
        raise Unreadable('That is no choice. Answer with {"better": 1} or {"better": 2}.')
    return int(pick)


def _use(answers: Sequence[Answer[Any]], disagreement: float) -> dict[str, Any]:
    """What the judging of the group took: the same for all its episodes."""
    tokens = math.fsum((one.use.prompt_tokens or 0) + (one.use.completion_tokens or 0) for one in answers)
    seconds = math.fsum(one.use.duration_s for one in answers)
    return {"group_metrics": {"tokens": tokens, "s": round(seconds, 4), "disagreement": disagreement}}


def _circular(beats: set[tuple[int, int]], n: int) -> float:
    triples = list(itertools.combinations(range(n), 3))
    turning = [t for t in triples if _turns(beats, *t)]
    return len(turning) / len(triples) if triples else 0.0


def _turns(beats: set[tuple[int, int]], a: int, b: int, c: int) -> bool:
    return {(a, b), (b, c), (c, a)} <= beats or {(b, a), (c, b), (a, c)} <= beats


def _place(value: float, n: int) -> int:
    return round((1 - value) * (n - 1)) + 1


def _word_pairs(text: str) -> frozenset[tuple[str, ...]]:
    words = text.casefold().split()
    return frozenset(itertools.pairwise(words)) or frozenset([tuple(words)])


def _jaccard(a: frozenset[tuple[str, ...]], b: frozenset[tuple[str, ...]]) -> float:
    return len(a & b) / len(a | b)
