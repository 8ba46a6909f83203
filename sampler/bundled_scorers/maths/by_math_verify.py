"""What our reading leaves: integrals, sums, limits. Read by math-verify, from whole LaTeX alone, compared without tolerance."""

from typing import Any

RELATIVE = 1e-40
DIGITS = 60


def by_math_verify(answer: str, expected: str) -> bool:
    """Whether math-verify calls them equal and their values are. No number is taken out of LaTeX that does not parse."""
    from math_verify import verify  # takes 1 to 3 s of a core; few answers need it

    given, gold = _parsed(answer), _parsed(expected)
    if not given or not gold or not verify(gold, given, timeout_seconds=None):
        return False
    return any(_same_value(a, b) for a in gold for b in given)


def _parsed(text: str) -> list[Any]:
    from math_verify import parse
    from math_verify.parser import LatexExtractionConfig

    bare = text.strip().strip("$").strip()
    parsed = parse(f"${bare}$", (LatexExtractionConfig(),), fallback_mode="no_fallback", parsing_timeout=None)
    return [one for one in parsed if not isinstance(one, str)]


def _same_value(a: Any, b: Any) -> bool:
    """Of numbers: to 40 digits, of what is larger. Of other expressions math-verify's word counts."""
    if getattr(a, "free_symbols", True) or getattr(b, "free_symbols", True):
        return True
    try:
        left, right = a.doit().evalf(DIGITS), b.doit().evalf(DIGITS)
        difference = abs(left - right)
        return bool(difference <= RELATIVE * max(abs(left), abs(right)))
    except (AttributeError, TypeError, ValueError):
        return bool(a == b)
