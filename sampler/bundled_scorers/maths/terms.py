"""The tree of an expression, and its value: a fraction where it is rational, else a number of `DIGITS` digits.

So numbers are compared exactly, and what is irrational with hundreds of digits: no tolerance of size.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath

DIGITS = 400
MOST_BITS = 1 << 22  # of an exact power
MOST_FACTORIAL = 20_000
MOST_SIZE = 10**9  # of an exponent

Value = Any  # Fraction, mpmath.mpf or mpmath.mpc
mpmath.mp.dps = DIGITS


class NoValue(Exception):
    """The expression has none here, such as 1/0."""


class TooHard(Exception):
    """The value has too many digits."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What variables are, the base of a plain logarithm (10, or e), and the sign of ±."""

    variables: Mapping[str, Value]
    log_base: int = 10
    plus_minus: int = 1


class Term(ABC):
    """`parts`: the terms in it."""

    parts: tuple["Term", ...] = ()

    @abstractmethod
    def value(self, scope: Scope) -> Value:
        """Raises NoValue and TooHard."""

    def names(self) -> frozenset[str]:
        return frozenset().union(*(part.names() for part in self.parts))

    def has(self, kind: type["Term"]) -> bool:
        return isinstance(self, kind) or any(part.has(kind) for part in self.parts)


@dataclass(frozen=True)
class Number(Term):
    exact: Fraction
    is_whole: bool = False  # written without a point

    def value(self, scope: Scope) -> Value:
        return self.exact


@dataclass(frozen=True)
class Constant(Term):
    name: str  # pi, e, i, oo

    def value(self, scope: Scope) -> Value:
        return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1), "oo": mpmath.inf}[self.name]


@dataclass(frozen=True)
class Variable(Term):
    name: str

    def value(self, scope: Scope) -> Value:
        return scope.variables[self.name]

    def names(self) -> frozenset[str]:
        return frozenset([self.name])


@dataclass(frozen=True)
class PlusMinus(Term):
    """The sign of ± (1) or ∓ (-1)."""

    sign: int

    def value(self, scope: Scope) -> Value:
        return Fraction(self.sign * scope.plus_minus)


class Signed(Term):
    """A term with one of the signs of its ±."""

    def __init__(self, inner: Term, sign: int) -> None:
        self.parts, self.sign = (inner,), sign

    def value(self, scope: Scope) -> Value:
        return self.parts[0].value(Scope(scope.variables, scope.log_base, self.sign))

    def has(self, kind: type[Term]) -> bool:
        return kind is not PlusMinus and super().has(kind)


class Call(Term):
    """A function of terms."""

    def __init__(self, name: str, *parts: Term) -> None:
        self.name, self.parts = name, parts

    def value(self, scope: Scope) -> Value:
        values = [part.value(scope) for part in self.parts]
        try:
            if self.name == "log":
                return FUNCTIONS["ln"](values[0]) / (mpmath.log(10) if scope.log_base == 10 else 1)
            return _checked(FUNCTIONS[self.name](*values))
        except (ZeroDivisionError, ValueError, TypeError) as exc:
            raise NoValue(self.name) from exc
        except (OverflowError, MemoryError) as exc:
            raise TooHard(self.name) from exc


def inexact(value: Value) -> Value:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def equal_values(a: Value, b: Value) -> bool:
    """Exactly where both are rational. Elsewhere to 300 of 400 digits, of what is larger."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    a, b = inexact(a), inexact(b)
    if mpmath.isinf(a) or mpmath.isinf(b):
        return bool(a == b)
    return bool(abs(a - b) <= max(abs(a), abs(b)) * mpmath.mpf(10) ** -300)


def _checked(value: Value) -> Value:
    if isinstance(value, mpmath.mpc) and value.imag == 0:
        value = value.real
    if isinstance(value, mpmath.mpf | mpmath.mpc) and mpmath.isnan(value):
        raise NoValue("undefined")
    return value


def _both(exact: Callable[[Fraction, Fraction], Value], other: Callable[[Value, Value], Value]) -> Any:
    def apply(a: Value, b: Value) -> Value:
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return exact(a, b)
        return other(inexact(a), inexact(b))

    return apply


def _divided(a: Value, b: Value) -> Value:
    if b == 0:
        raise ZeroDivisionError
    return a / b if isinstance(a, Fraction) == isinstance(b, Fraction) else inexact(a) / inexact(b)


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and isinstance(base, Fraction):
        if exponent.denominator == 1:
            return _whole_power(base, exponent.numerator)
        if base >= 0 and (root := _exact_root(base, exponent.denominator)) is not None:
            return _whole_power(root, exponent.numerator)
    if base == 0:
        if isinstance(exponent, Fraction) and exponent > 0:
            return Fraction(0)
        raise ZeroDivisionError
    base, exponent = inexact(base), inexact(exponent)
    if abs(exponent) > MOST_SIZE and not mpmath.isinf(exponent):
        raise TooHard("an exponent")
    return mpmath.power(base, exponent)


def _whole_power(base: Fraction, exponent: int) -> Value:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * size > MOST_BITS and size > 1:
        raise TooHard("a power")
    if abs(exponent) > MOST_BITS:
        exponent = 2 - exponent % 2 if exponent > 0 else -(exponent % 2) - 2  # of 0, 1 and -1
    return base**exponent


def root_of(degree: Value, base: Value) -> Value:
    """The real root of a negative number where the degree is odd."""
    if isinstance(base, Fraction) and isinstance(degree, Fraction) and degree.denominator == 1 and degree > 0:
        n = degree.numerator
        if n > 10_000:
            raise TooHard("a root")
        if base < 0 and n % 2:
            exact = _exact_root(-base, n)
            return -exact if exact is not None else -mpmath.root(inexact(-base), n)
        exact = _exact_root(base, n) if base >= 0 else None
        return exact if exact is not None else mpmath.root(inexact(base), n)
    return _power(base, _divided(Fraction(1), degree))


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    top, bottom = _whole_root(base.numerator, degree), _whole_root(base.denominator, degree)
    return None if top is None or bottom is None else Fraction(top, bottom)


def _whole_root(n: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(n)
        return root if root * root == n else None
    if n < 2:
        return n
    if degree > n.bit_length():
        return None
    with mpmath.workdps(n.bit_length() // 3 + 30):
        root = int(mpmath.nint(mpmath.root(n, degree)))
    return root if root**degree == n else None


def _whole(value: Value) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise NoValue("no whole number")
    return value.numerator


def _factorial(value: Value) -> Value:
    n = _whole(value)
    if n < 0:
        raise NoValue("a factorial")
    if n > MOST_FACTORIAL:
        raise TooHard("a factorial")
    return Fraction(math.factorial(n))


def _binomial(n: Value, k: Value) -> Value:
    top, bottom = _whole(n), _whole(k)
    if not 0 <= top <= MOST_FACTORIAL or bottom < 0:
        raise NoValue("a binomial")
    return Fraction(math.comb(top, bottom))


def _floor(value: Value) -> Value:
    if isinstance(value, Fraction):
        return Fraction(math.floor(value))
    return Fraction(int(mpmath.floor(value.real)))


def _inexactly(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda x: Fraction(0) if x == 0 and not function(mpmath.mpf(0)) else function(inexact(x))


_TRIGONOMETRIC = (
    *("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "coth"),
    *("asin", "acos", "atan", "acot", "asec", "acsc", "asinh", "acosh", "atanh"),
)


def _ln(x: Value) -> Value:
    if x == 1:
        return Fraction(0)
    if x == 0:
        raise ZeroDivisionError
    return mpmath.log(inexact(x))


def _exp(x: Value) -> Value:
    x = inexact(x)
    if abs(x) > MOST_SIZE:
        raise TooHard("an exponent")
    return mpmath.exp(x)


def _reduced(function: Callable[..., int]) -> Any:
    return lambda *values: Fraction(function(*(_whole(value) for value in values)))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "+": _both(lambda a, b: a + b, lambda a, b: a + b),
    "-": _both(lambda a, b: a - b, lambda a, b: a - b),
    "*": _both(lambda a, b: a * b, lambda a, b: a * b),
    "/": _divided,
    "^": _power,
    "neg": lambda a: -a,
    "same": lambda a: a,
    "degrees": lambda a: inexact(a) * mpmath.pi / 180,
    "sqrt": lambda a: root_of(Fraction(2), a),
    "root": root_of,
    "!": _factorial,
    "binom": _binomial,
    "abs": abs,
    "floor": _floor,
    "ceil": lambda a: -_floor(-a),
    "ln": _ln,
    "logb": lambda base, a: _divided(_ln(a), _ln(base)),
    "exp": _exp,
    "gcd": _reduced(math.gcd),
    "lcm": _reduced(math.lcm),
    "min": lambda *v: min(v, key=lambda x: inexact(x).real),
    "max": lambda *v: max(v, key=lambda x: inexact(x).real),
    "mod": lambda a, b: Fraction(_whole(a) % _whole(b)),
    **{name: _inexactly(getattr(mpmath, name)) for name in _TRIGONOMETRIC},
}
