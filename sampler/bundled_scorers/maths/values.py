"""Whether two terms have the same value: exactly, or at rational points."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import mpmath

from sampler.bundled_scorers.maths.terms import (
    DIGITS,
    Call,
    NoValue,
    PlusMinus,
    Scope,
    Term,
    Value,
    equal_values,
    inexact,
)

POINTS = 8
LEAST_POINTS = 3
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


def same_terms(a: Term, b: Term) -> bool:
    """At every point where both have a value, of which there must be some."""
    equal_points = 0
    is_whole = _has_call(a, ("!", "binom")) or _has_call(b, ("!", "binom"))
    by_log = _has_call(a, ("log",)) or _has_call(b, ("log",))
    for scope in scopes(a.names() | b.names(), by_log=by_log, is_whole=is_whole):
        try:
            left, right = a.value(scope), b.value(scope)
        except NoValue:
            continue
        if not equal_values(left, right) and not _vanishes(a, b, scope):
            return False
        equal_points += 1
    return equal_points >= (LEAST_POINTS if a.names() | b.names() else 1)


def _vanishes(a: Term, b: Term, scope: Scope) -> bool:
    """Whether the difference is nothing but rounding: with twice the digits it is that much smaller."""
    sizes = []
    for digits in (DIGITS, 2 * DIGITS):
        with mpmath.workdps(digits):
            sizes.append(abs(inexact(a.value(scope)) - inexact(b.value(scope))))
    return bool(0 < sizes[0] < mpmath.mpf(10) ** -100 and sizes[1] < sizes[0] * mpmath.mpf(10) ** -200)


def _has_call(term: Term, names: Sequence[str]) -> bool:
    return (isinstance(term, Call) and term.name in names) or any(_has_call(part, names) for part in term.parts)


def scopes(names: frozenset[str], *, by_log: bool = False, is_whole: bool = False) -> Iterator[Scope]:
    """Fixed rational points, positive and negative; a plain logarithm has either base. `is_whole`: whole numbers."""
    bases = (10, 0) if by_log else (10,)
    ordered = sorted(names)
    for k in range(POINTS if names else 1):
        point = {}
        for n, name in enumerate(ordered):
            top, bottom = _PRIMES[(5 * k + 3 * n) % 24], _PRIMES[(7 * k + 5 * n + 1) % 24]
            if is_whole:
                point[name] = Fraction(top + 3 * n)
                continue
            point[name] = Fraction(top if (k + n * (k // 2)) % 2 == 0 else -top, bottom)
        for base in bases:
            yield Scope(point, base)


def number_in(term: Term) -> Value | None:
    if term.names() or term.has(PlusMinus):
        return None
    try:
        value = term.value(Scope({}))
    except NoValue:
        return None
    return value if not isinstance(value, mpmath.mpc) else None
