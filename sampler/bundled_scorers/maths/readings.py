"""What a text may be read as: a term, a collection of readings, a relation, a set."""

from dataclasses import dataclass, field

from sampler.bundled_scorers.maths.lexing import NotRead
from sampler.bundled_scorers.maths.terms import Call, Number, Term


@dataclass(frozen=True)
class Collection:
    """`kind`: list (no brackets), tuple, interval, set, matrix (of rows). `opening`, `closing`: the brackets."""

    kind: str
    items: tuple["Reading", ...]
    opening: str = ""
    closing: str = ""


@dataclass(frozen=True)
class Relation:
    """`sides[0] signs[0] sides[1] signs[1] …`"""

    sides: tuple["Reading", ...]
    signs: tuple[str, ...]


@dataclass(frozen=True)
class SetOperation:
    """A union, intersection or difference of sets."""

    sign: str
    parts: tuple["Reading", ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class NamedSet:
    name: str  # R, Z, N, Q, C, empty


Reading = Term | Collection | Relation | SetOperation | NamedSet


class Parenthesized(Call):
    """(a): no part of a mixed number."""

    def __init__(self, inner: Term) -> None:
        super().__init__("same", inner)


def grouped(opening: str, closing: str, inner: Reading) -> Reading:
    items = inner.items if isinstance(inner, Collection) and inner.kind == "list" else (inner,)
    if opening in ("\\lfloor", "\\lceil"):
        return Call("floor" if opening == "\\lfloor" else "ceil", as_term(inner))
    if opening == "\\{":
        return Collection("set", items)
    if opening == "{":
        return inner if len(items) == 1 else Collection("set", items)
    if isinstance(inner, Collection) and inner.kind == "matrix":
        return inner
    if len(items) == 1:
        if opening + closing not in ("()", "[]") or not isinstance(inner, Term):
            raise NotRead("brackets around what is no term")
        return Parenthesized(inner) if opening == "(" else inner
    return Collection("tuple", items, opening, closing)


def is_fraction(reading: Reading) -> bool:
    match reading:
        case Call(name="/", parts=(Number(is_whole=True) as top, Number(is_whole=True) as bottom)):
            return top.exact < bottom.exact
    return False


def as_term(reading: Reading) -> Term:
    if not isinstance(reading, Term):
        raise NotRead("no term")
    return reading
