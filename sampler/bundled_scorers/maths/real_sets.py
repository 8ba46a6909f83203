"""Sets of real numbers as intervals, so that unions, differences and inequalities can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mpmath

from sampler.bundled_scorers.maths.terms import Value, equal_values, inexact


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, each with whether it belongs to it."""

    low: Value
    has_low: bool
    high: Value
    has_high: bool


RealSet = tuple[Interval, ...]  # disjoint, in order
EVERYTHING: RealSet = (Interval(-mpmath.inf, False, mpmath.inf, False),)


def real_set(intervals: Sequence[Interval]) -> RealSet:
    """Without empty ones, overlaps and infinite ends that belong to them."""
    proper = [_open_at_infinity(one) for one in intervals]
    proper = [
        one for one in proper if _less(one.low, one.high) or (_same(one.low, one.high) and one.has_low and one.has_high)
    ]
    proper.sort(key=lambda one: (_Key(one.low), not one.has_low))
    merged: list[Interval] = []
    for one in proper:
        last = merged[-1] if merged else None
        touches = last is not None and (
            _less(one.low, last.high) or (_same(one.low, last.high) and (one.has_low or last.has_high))
        )
        if last is None or not touches:
            merged.append(one)
        elif _less(last.high, one.high):
            merged[-1] = Interval(last.low, last.has_low, one.high, one.has_high)
        elif _same(last.high, one.high):
            merged[-1] = Interval(last.low, last.has_low, last.high, last.has_high or one.has_high)
    return tuple(merged)


def complement(of: RealSet) -> RealSet:
    low: Value = -mpmath.inf
    has_low = False
    gaps = []
    for one in of:
        gaps.append(Interval(low, has_low, one.low, not one.has_low))
        low, has_low = one.high, not one.has_high
    return real_set([*gaps, Interval(low, has_low, mpmath.inf, False)])


def union(a: RealSet, b: RealSet) -> RealSet:
    return real_set([*a, *b])


def intersection(a: RealSet, b: RealSet) -> RealSet:
    return complement(union(complement(a), complement(b)))


def same_sets(a: RealSet, b: RealSet) -> bool:
    return len(a) == len(b) and all(
        (x.has_low, x.has_high) == (y.has_low, y.has_high) and _same(x.low, y.low) and _same(x.high, y.high)
        for x, y in zip(a, b, strict=True)
    )


class _Key:
    def __init__(self, value: Value) -> None:
        self.value = value

    def __lt__(self, other: Any) -> bool:
        return _less(self.value, other.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and _same(self.value, other.value)


def _same(a: Value, b: Value) -> bool:
    return equal_values(a, b)


def _less(a: Value, b: Value) -> bool:
    return not _same(a, b) and bool(inexact(a) < inexact(b))


def _open_at_infinity(one: Interval) -> Interval:
    return Interval(
        one.low,
        one.has_low and not mpmath.isinf(inexact(one.low)),
        one.high,
        one.has_high and not mpmath.isinf(inexact(one.high)),
    )
