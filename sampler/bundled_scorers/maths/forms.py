"""One form for what is the _same: names of values, inequalities, signs of ±."""

from sampler.bundled_scorers.maths.readings import Collection, Reading, Relation
from sampler.bundled_scorers.maths.terms import Call, Constant, Number, PlusMinus, Signed, Term, Variable
from sampler.bundled_scorers.maths.values import same_terms


def _same(a: Reading, b: Reading) -> bool:
    return isinstance(a, Term) and isinstance(b, Term) and same_terms(a, b)


def plain(reading: Reading) -> Reading:
    """With ± written out, names of values and inequalities of one variable resolved."""
    if isinstance(reading, Term):
        if reading.has(PlusMinus):
            return Collection("list", (Signed(reading, 1), Signed(reading, -1)))
        return reading
    if isinstance(reading, Relation):
        return _resolved(reading)
    if isinstance(reading, Collection) and reading.kind in ("list", "set"):
        return _flat(reading)
    return reading


def _flat(group: Collection) -> Reading:
    """`x = 1 or x = 2` is 1, 2; so is `x = 1, 2`; an item with ± is two."""
    items: list[Reading] = []
    names: set[str | None] = set()
    for item in group.items:
        name, value = named(item)
        names.add(name)
        items.append(value if name is not None else item)
    same_name = len(names) == 1 or (
        names - {None} and named(group.items[0])[0] is not None and len(names) == 2 and None in names
    )
    ordered = None not in names and len(names) == len(items) and [*map(str, names)] and _in_alphabet(group)
    if not (same_name or ordered):
        items = list(group.items)
    spread: list[Reading] = []
    for item in items:
        form = plain(item)
        inner = isinstance(form, Collection) and form.kind == "list"
        spread += form.items if isinstance(form, Collection) and inner else [form]
    if ordered and not same_name:
        return Collection("tuple", tuple(spread), "(", ")")
    return Collection(group.kind, tuple(spread))


def _in_alphabet(group: Collection) -> bool:
    names = [named(item)[0] or "" for item in group.items]
    return names == sorted(names)


def named(given: Reading) -> tuple[str | None, Reading]:
    """(x, 5) of `x = 5`, `5 = x`, `x = 2 + 3 = 5` and `f(x) = 5`; (None, the reading) of all else."""
    if not isinstance(given, Relation) or set(given.signs) - {"=", "approx"}:
        return None, given
    sides = _before_approximation(given)
    name = next((n for side in (sides[0], sides[-1]) if (n := _name(side)) is not None), None)
    if name is None or len(sides) < 2:
        return None, given
    values = [side for side in sides if _name(side) != name]
    if not values or any(isinstance(v, Term) and name in v.names() for v in values):
        return None, given
    if all(_same(values[0], other) for other in values[1:]):
        return name, values[-1]
    return None, given


def _before_approximation(relation: Relation) -> list[Reading]:
    sides = [relation.sides[0]]
    for sign, side in zip(relation.signs, relation.sides[1:], strict=True):
        if sign == "approx":
            break
        sides.append(side)
    return sides


def _name(side: Reading) -> str | None:
    if isinstance(side, Variable):
        return side.name
    if isinstance(side, Collection) and side.kind == "tuple" and all(isinstance(item, Variable) for item in side.items):
        return ",".join(item.name for item in side.items if isinstance(item, Variable))
    if isinstance(side, Call) and side.name == "*" and len(side.parts) == 2 and isinstance(side.parts[0], Variable):
        inner = side.parts[1]
        if isinstance(inner, Call) and inner.name == "same" and isinstance(inner.parts[0], Variable | Number):
            return f"{side.parts[0].name}(…)"
    return None


def _resolved(relation: Relation) -> Reading:
    if relation.signs == ("in",) and not isinstance(relation.sides[1], Term):
        return plain(relation.sides[1])
    sides = _before_approximation(relation)
    if len(sides) == 1:
        return plain(sides[0])
    if set(relation.signs) <= {"=", "approx"} and all(isinstance(s, Term) and not s.names() for s in sides):
        return sides[-1] if all(_same(sides[0], other) for other in sides[1:]) else relation  # 3 · 4 = 12
    return _inequality(relation) or relation


def _inequality(relation: Relation) -> Reading | None:
    """As an interval, of one variable between numbers."""
    signs, sides = relation.signs, relation.sides
    if not set(signs) <= {"<", "<="} and not set(signs) <= {">", ">="}:
        return None
    if signs[0] in (">", ">="):
        signs, sides = tuple({">": "<", ">=": "<="}[s] for s in reversed(signs)), tuple(reversed(sides))
    at = next((k for k, side in enumerate(sides) if isinstance(side, Variable)), None)
    others = [side for k, side in enumerate(sides) if k != at]
    if at is None or len(sides) > 3 or not all(isinstance(s, Term) and not s.names() for s in others):
        return None
    if len(sides) == 3 and at != 1:
        return None
    infinity = Constant("oo")
    low: Reading = sides[at - 1] if at > 0 else Call("neg", infinity)
    high: Reading = sides[at + 1] if at + 1 < len(sides) else infinity
    opening = "[" if at > 0 and signs[at - 1] == "<=" else "("
    closing = "]" if at + 1 < len(sides) and signs[at] == "<=" else ")"
    return Collection("tuple", (low, high), opening, closing)
