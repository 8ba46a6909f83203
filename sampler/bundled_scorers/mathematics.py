"""The scorer `math`: plain numbers are compared here, everything else by `maths` beside it, in a separate process."""

import re
from fractions import Fraction

from sampler.bundled_scorers.math_checker import MathChecker
from sampler.core.scorers.details import accepted_ones, quoted
from sampler.core.scorers.registry import Score, ScoringRequest, register_scorer


@register_scorer("math")
async def math_equal(request: ScoringRequest) -> Score:
    """1 if the answer is mathematically equal to an accepted one (docs/bring/scorers.md)."""
    answer = request.answer or ""
    quick = [_numerically_equal(answer, one) for one in request.accepted]
    if True in quick:
        gold = quoted(request.accepted[quick.index(True)])
        return Score(1.0, {"by": "number", "reason": f"the same as {gold}"})
    right = accepted_ones(request.accepted)
    if quick and all(equal is False for equal in quick):
        return Score(0.0, {"by": "number", "reason": f"another number than {right}"})
    equal, why = await _CHECKER.equal(answer, list(request.accepted))
    judged = "equal to an accepted answer" if equal else f"not equal to {right}"
    return Score(float(equal), {"by": "reading", "reason": why or judged})


_CHECKER = MathChecker()
_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3}){1,12}|\d{1,60})(?:\.(\d{1,60}))?")
_RATIO = re.compile(r"([+-]?\d{1,60})\s*/\s*(\d{1,60})")


def _numerically_equal(left: str, right: str) -> bool | None:
    """None: not both are plain numbers."""
    if left.split() == right.split() and left.strip():
        return True
    a, b = _number(left), _number(right)
    return None if a is None or b is None else a == b


def _number(text: str) -> Fraction | None:
    plain = text.strip().strip("$").strip()
    match = _NUMBER.fullmatch(plain)
    if match:
        sign, whole, decimals = match.groups()
        return Fraction(f"{sign}{whole.replace(',', '')}.{decimals or '0'}")
    match = _RATIO.fullmatch(plain)
    if match and int(match.group(2)):
        return Fraction(int(match.group(1)), int(match.group(2)))
    return None
