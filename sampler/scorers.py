"""Scorers by name: a task names its scorer, the scorer turns an answer into a number.

    @register_scorer("exact_match")
    async def exact_match(request: ScoringRequest) -> Score: ...

    score = await score_answer("exact_match", request, timeout_s=60)

Promise: a missing answer is score 0 with the detail "no answer"; a scorer that crashes, hangs or returns no finite
number is `ScorerFailed`, a failure of the plumbing, and never score 0.
"""

import asyncio
import math
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sampler.errors import ScorerFailed
from sampler.math_checker import MathChecker
from shared.errors import ConfigError


@dataclass(frozen=True)
class ScoringRequest:
    """`answer`: extracted, None when there was none; `accepted`: any of these is right; `reply`: the last reply's text.

    `payload` is the task's own, `messages` the whole conversation: for judges.
    """

    answer: str | None
    accepted: tuple[str, ...]
    query: str = ""
    reply: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Score:
    """`details` is stored with the record, for people. `others`: scores of other policies that took part; one that is not in
    it has the same as the task's own policy."""

    value: float
    details: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)


Scorer = Callable[[ScoringRequest], Awaitable[Score]]


@dataclass(frozen=True)
class _Registered:
    scorer: Scorer
    needs_answer: bool


_SCORERS: dict[str, _Registered] = {}


def register_scorer(name: str, needs_answer: bool = True) -> Callable[[Scorer], Scorer]:
    """Decorator. `needs_answer=False` for scorers that judge the whole reply even where no answer was found.

    Registering the same function again is harmless; another one under a known name is a ConfigError.
    """

    def register(scorer: Scorer) -> Scorer:
        known = _SCORERS.get(name)
        if known is not None and known.scorer is not scorer:
            raise ConfigError(f"scorer {name!r} is registered twice; give one of them another name")
        _SCORERS[name] = _Registered(scorer, needs_answer)
        return scorer

    return register


def scorer_names() -> list[str]:
    return sorted(_SCORERS)


def require_scorer(name: str) -> None:
    """Raises ConfigError for an unknown name: ask when tasks are imported, not when the first one is scored."""
    if name not in _SCORERS:
        raise ConfigError(
            f"scorer {name!r} is unknown; expected one of {', '.join(scorer_names())}, "
            "or register it with @register_scorer in a module that the sampler imports"
        )


async def score_answer(name: str, request: ScoringRequest, timeout_s: float = 120.0) -> Score:
    """Raises ConfigError for an unknown scorer, ScorerFailed for one that fails."""
    require_scorer(name)
    registered = _SCORERS[name]
    if request.answer is None and registered.needs_answer:
        return Score(0.0, {"reason": "no answer"})
    try:
        async with asyncio.timeout(timeout_s):
            score = await registered.scorer(request)
    except ScorerFailed:
        raise
    except TimeoutError as exc:
        raise ScorerFailed(f"scorer {name!r} gave no score within {timeout_s:g} s") from exc
    except Exception as exc:  # a scorer is the user's code: whatever it raises is the plumbing's failure, not a score
        raise ScorerFailed(f"scorer {name!r} crashed: {type(exc).__name__}: {exc}") from exc
    if not isinstance(score, Score) or not isinstance(score.value, int | float) or not math.isfinite(score.value):
        raise ScorerFailed(f"scorer {name!r} returned {score!r}; expected Score(value=<finite number>)")
    return score


@register_scorer("exact_match")
async def exact_match(request: ScoringRequest) -> Score:
    """1 when the answer equals an accepted one up to letter case, white space and Unicode compatibility forms."""
    given = _normalized(request.answer or "")
    return Score(float(any(given == _normalized(one) for one in request.accepted)))


def _normalized(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@register_scorer("math")
async def math_equal(request: ScoringRequest) -> Score:
    """1 when the answer is mathematically equal to an accepted one (math-verify); numbers are compared exactly first."""
    answer = request.answer or ""
    quick = [_numerically_equal(answer, one) for one in request.accepted]
    if True in quick:
        return Score(1.0, {"by": "number"})
    if quick and all(equal is False for equal in quick):
        return Score(0.0, {"by": "number"})
    equal, why = await _CHECKER.equal(answer, list(request.accepted))
    return Score(float(equal), {"by": "math-verify", **({"reason": why} if why else {})})


_CHECKER = MathChecker()
_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3}){1,12}|\d{1,60})(?:\.(\d{1,60}))?")
_RATIO = re.compile(r"([+-]?\d{1,60})\s*/\s*(\d{1,60})")


def _numerically_equal(left: str, right: str) -> bool | None:
    """None when this cannot decide: unequal decimals may still be a rounding, which math-verify allows."""
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return None
    if a == b:
        return True
    return False if a.denominator == b.denominator == 1 else None


def _number(text: str) -> Fraction | None:
    plain = text.strip().strip("$").strip()
    if match := _NUMBER.fullmatch(plain):
        sign, whole, decimals = match.groups()
        return Fraction(f"{sign}{whole.replace(',', '')}.{decimals or '0'}")
    if (match := _RATIO.fullmatch(plain)) and int(match.group(2)):
        return Fraction(int(match.group(1)), int(match.group(2)))
    return None
