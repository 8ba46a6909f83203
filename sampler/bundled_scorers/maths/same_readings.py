"""Whether two readings are the same: numbers, collections in their order or any, equations up to a factor, sets of reals."""

from collections.abc import Sequence

import mpmath

from sampler.bundled_scorers.maths.forms import named, plain
from sampler.bundled_scorers.maths.readings import Collection, NamedSet, Reading, Relation, SetOperation
from sampler.bundled_scorers.maths.real_sets import (
    EVERYTHING,
    Interval,
    RealSet,
    complement,
    intersection,
    real_set,
    same_sets,
    union,
)
from sampler.bundled_scorers.maths.terms import Call, Constant, NoValue, Term, Value, Variable, equal_values, inexact
from sampler.bundled_scorers.maths.values import LEAST_POINTS, number_in, same_terms, scopes

MOST_ITEMS = 60


def same(a: Reading, b: Reading) -> bool:
    as_written = _same_as_written(a, b)
    if as_written is not None:
        return as_written
    a, b = plain(a), plain(b)
    if isinstance(a, Term) and isinstance(b, Term):
        return same_terms(a, b)
    left, right = _real(a), _real(b)
    if left is not None and right is not None and not _both_finite(a, b):
        return same_sets(left, right)
    if isinstance(a, Relation) or isinstance(b, Relation):
        return _same_relations(a, b)
    if isinstance(a, NamedSet) or isinstance(b, NamedSet):
        return a == b
    if isinstance(a, Collection) and isinstance(b, Collection):
        return _same_collections(a, b)
    return _is_only_item(a, b) or _is_only_item(b, a) or _is_ratio_of(a, b) or _is_ratio_of(b, a)


def _same_as_written(a: Reading, b: Reading) -> bool | None:
    """Before names are taken away: equations, of which the names count, and x = 1, y = 2. None: that decides nothing."""
    if isinstance(a, Relation) and isinstance(b, Relation):
        if _same_equations(a, b):
            return True
        if _names(a) and _names(b) and not _names(a) & _names(b):  # x > 5 is not y > 5
            return False
    if isinstance(a, Collection) and isinstance(b, Collection) and _all_named(a) and _all_named(b):
        return _in_any_order(a.items, b.items)
    return None


def _is_only_item(group: Reading, item: Reading) -> bool:
    is_group = isinstance(group, Collection) and group.kind in ("set", "list")
    return isinstance(group, Collection) and is_group and len(group.items) == 1 and same(group.items[0], item)


def _names(relation: Relation) -> frozenset[str]:
    return frozenset().union(*(side.names() for side in relation.sides if isinstance(side, Term)))


def _all_named(reading: Reading) -> bool:
    """x = 1, y = 2: in any order, each by its name."""
    if not isinstance(reading, Collection) or reading.kind != "list":
        return False
    names = [named(item)[0] for item in reading.items]
    return None not in names and len(set(names)) == len(names)


def _is_ratio_of(a: Reading, b: Reading) -> bool:
    if not (isinstance(a, Collection) and a.kind == "ratio" and len(a.items) == 2 and isinstance(b, Term)):
        return False
    left, right = a.items
    return isinstance(left, Term) and isinstance(right, Term) and same_terms(Call("/", left, right), b)


def _both_finite(a: Reading, b: Reading) -> bool:
    return all(isinstance(one, Collection) and one.kind in ("set", "list", "matrix") for one in (a, b))


def _same_collections(a: Collection, b: Collection) -> bool:
    kinds = {a.kind, b.kind}
    if max(len(a.items), len(b.items)) > MOST_ITEMS:
        return False
    if kinds == {"matrix"}:
        return _same_shape(a, b) and all(same(x, y) for x, y in zip(_cells(a), _cells(b), strict=True))
    if "matrix" in kinds:
        matrix, other = (a, b) if a.kind == "matrix" else (b, a)
        is_vector = len(matrix.items) == 1 or all(isinstance(r, Collection) and len(r.items) == 1 for r in matrix.items)
        return is_vector and other.kind == "tuple" and _in_order(_cells(matrix), other.items)
    if kinds == {"ratio"}:
        return _proportional(a.items, b.items)
    if "ratio" in kinds:
        return False
    if kinds == {"tuple"}:
        return _in_order(a.items, b.items) and (len(a.items) != 2 or _brackets(a) == _brackets(b))
    if kinds == {"tuple", "list"}:
        group = a if a.kind == "tuple" else b
        return _brackets(group) in ("()", "⟨⟩") and _in_order(a.items, b.items)
    if "tuple" in kinds:
        return False
    if "set" in kinds:
        return all(any(same(x, y) for y in b.items) for x in a.items) and all(
            any(same(x, y) for x in a.items) for y in b.items
        )
    return _in_any_order(a.items, b.items)


def _brackets(group: Collection) -> str:
    """Next to an infinity any bracket is open; angles are round."""
    opening = {"\\langle": "(", "\\rangle": ")"}.get(group.opening, group.opening)
    ended = {"\\rangle": ")"}.get(group.closing, group.closing)
    if len(group.items) == 2:
        opening = "(" if _is_infinite(group.items[0]) else opening
        ended = ")" if _is_infinite(group.items[1]) else ended
    return opening + ended


def _is_infinite(item: Reading) -> bool:
    return isinstance(item, Term) and not item.names() and item.has(Constant) and mpmath.isinf(number_in(item) or 0)


def _in_order(a: Sequence[Reading], b: Sequence[Reading]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def _in_any_order(a: Sequence[Reading], b: Sequence[Reading]) -> bool:
    rest = list(b)
    for x in a:
        at = next((k for k, y in enumerate(rest) if same(x, y)), None)
        if at is None:
            return False
        rest.pop(at)
    return not rest


def _proportional(a: Sequence[Reading], b: Sequence[Reading]) -> bool:
    if len(a) != len(b):
        return False
    terms = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, Term) and isinstance(y, Term)]
    (x0, y0), *rest = terms
    return len(terms) == len(a) and all(same_terms(Call("*", x0, y), Call("*", x, y0)) for x, y in rest)


def _same_shape(a: Collection, b: Collection) -> bool:
    return [len(r.items) for r in a.items if isinstance(r, Collection)] == [
        len(r.items) for r in b.items if isinstance(r, Collection)
    ]


def _cells(matrix: Collection) -> list[Reading]:
    return [cell for row in matrix.items if isinstance(row, Collection) for cell in row.items]


def _same_relations(a: Reading, b: Reading) -> bool:
    (name, value), (other, second) = named(a), named(b)
    if name is not None and other is not None:
        return name == other and same(value, second)
    if name is not None or other is not None:
        relation = a if name is not None else b
        if isinstance(b if name is not None else a, Relation):
            return _same_equations(a, b)
        return same(value, b) if name is not None and relation is a else same(a, second)
    return _same_equations(a, b)


def _same_equations(a: Reading, b: Reading) -> bool:
    """Two relations of two sides, one a multiple of the other."""
    if not (isinstance(a, Relation) and isinstance(b, Relation)):
        return False
    if len(a.signs) != len(b.signs):
        return False
    if a.signs == b.signs and all(same(x, y) for x, y in zip(a.sides, b.sides, strict=True)):
        return True
    if len(a.signs) != 1 or not all(isinstance(side, Term) for side in (*a.sides, *b.sides)):
        return False
    left, right = _zero_form(a), _zero_form(b)
    if left is None or right is None or left[1] != right[1]:
        return False
    ratio = _constant_ratio(left[0], right[0])
    return ratio is not None and (left[1] in ("=", "!=") or bool(inexact(ratio).real > 0))


def _constant_ratio(a: Term, b: Term) -> Value | None:
    """By which one is a multiple of the other; None: it is none."""
    ratios: list[Value] = []
    for scope in scopes(a.names() | b.names()):
        try:
            x, y = a.value(scope), b.value(scope)
        except NoValue:
            continue
        if (x == 0) != (y == 0):
            return None
        if y != 0:
            ratios.append(inexact(x) / inexact(y))
    same_everywhere = len(ratios) >= LEAST_POINTS and all(equal_values(ratio, ratios[0]) for ratio in ratios)
    return ratios[0] if same_everywhere else None


def _zero_form(relation: Relation) -> tuple[Term, str] | None:
    """(left − right, its sign among =, !=, < and <=)."""
    left, right = relation.sides
    assert isinstance(left, Term)
    assert isinstance(right, Term)
    sign = relation.signs[0]
    if sign in (">", ">="):
        left, right, sign = right, left, {">": "<", ">=": "<="}[sign]
    return (Call("-", left, right), sign) if sign in ("=", "!=", "<", "<=") else None


def _real(reading: Reading) -> RealSet | None:
    """None: no set of real numbers."""
    reading = plain(reading)
    if isinstance(reading, NamedSet):
        return {"R": EVERYTHING, "empty": ()}.get(reading.name)
    if isinstance(reading, SetOperation):
        a, b = (_real(Collection("set", (part,)) if isinstance(part, Term) else part) for part in reading.parts)
        if a is None or b is None:
            return None
        return {"union": union, "intersection": intersection}.get(
            reading.sign, lambda x, y: intersection(x, complement(y))
        )(a, b)
    if isinstance(reading, Relation) and reading.signs == ("!=",):
        value = next((side for side in reading.sides if not isinstance(side, Variable)), None)
        point = (
            number_in(value)
            if isinstance(value, Term) and any(isinstance(s, Variable) for s in reading.sides)
            else None
        )
        return None if point is None else complement(real_set([Interval(point, True, point, True)]))
    if not isinstance(reading, Collection):
        return None
    if reading.kind == "tuple" and len(reading.items) == 2:
        return _interval(reading)
    if reading.kind == "set":
        points = [number_in(item) if isinstance(item, Term) else None for item in reading.items]
        return real_set([Interval(p, True, p, True) for p in points]) if None not in points else None
    if reading.kind == "list":
        parts = [
            _real(item) if not isinstance(item, Collection) or item.kind != "set" else None for item in reading.items
        ]
        return real_set([one for part in parts if part is not None for one in part]) if None not in parts else None
    return None


def _interval(bounds: Collection) -> RealSet | None:
    low, high = (number_in(item) if isinstance(item, Term) else None for item in bounds.items)
    if low is None or high is None or not inexact(low) <= inexact(high):
        return None
    return real_set([Interval(low, bounds.opening == "[", high, bounds.closing == "]")])
