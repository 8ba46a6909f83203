"""Exact and floating-point arithmetic: `python -m sampler.mcp_docker.tools.calculator`. Bounded; runs no code."""

import ast
import contextlib
import math
import operator
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, cast

from sampler.mcp_docker.tools.serving import (
    BundledServer,
    BundledTool,
    ToolArguments,
    ToolRefusal,
    argument,
    run,
    server_of,
)

IS_ALONE = True  # it starts no process and writes no file
Number = int | float | Fraction
MAX_BITS = 14_000  # 4,215 digits: Python writes at most 4,300
_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(math, name)
    for name in (
        *("sqrt", "cbrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "tanh", "degrees", "radians", "hypot", "floor", "ceil", "trunc", "gcd", "lcm", "isqrt"),
    )
} | {"abs": abs, "min": min, "max": max, "sum": lambda *values: sum(values), "round": round}
_COUNTING: dict[str, tuple[Callable[..., int], int]] = {
    "factorial": (math.factorial, 1_000),
    "comb": (math.comb, 5_000),
    "perm": (math.perm, 1_000),
}


class CalculatorArguments(ToolArguments):
    expression: str = argument(
        description="for example (3/4 + 2**10) * sqrt(2); operators + - * / // % ** ^ and functions such as log, sin, "
        "factorial, comb, gcd, round, min, max",
        max_length=2_000,
    )


def calculate(arguments: CalculatorArguments) -> str:
    try:
        value = evaluate(arguments.expression)
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as exc:
        raise ToolRefusal(f"{arguments.expression[:200]!r} cannot be computed: {exc}") from exc
    return shown(value)


def evaluate(expression: str) -> Number:
    """Integers and fractions are exact."""
    return _value(ast.parse(expression.strip().replace("^", "**"), mode="eval").body)


def shown(value: Number) -> str:
    if not isinstance(value, Fraction):
        return str(value)
    if value.denominator == 1:
        return str(value.numerator)
    exact = f"{value.numerator}/{value.denominator}"
    with contextlib.suppress(OverflowError):  # beyond the largest floating-point number
        exact += f" = {float(value):.17g}"
    return exact


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("True and False are not numbers")
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_combined(_value(left), op, _value(right)))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]):
            return _bounded(_called(name, [_value(one) for one in given]))
    raise ValueError(f"{ast.unparse(node)[:100]!r} is not arithmetic")


def _combined(left: Number, op: ast.operator, right: Number) -> Number:
    if isinstance(op, ast.Div):
        return left / right if isinstance(left, float) or isinstance(right, float) else Fraction(left) / Fraction(right)
    if isinstance(op, ast.Pow):
        return _power(left, right)
    if type(op) not in _OPERATORS:
        raise ValueError(f"operator {type(op).__name__} is not known")
    return cast(Number, _OPERATORS[type(op)](left, right))


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, float) or isinstance(exponent, float) or Fraction(exponent).denominator != 1:
        return math.pow(base, exponent)
    bits = max(abs(base.numerator), base.denominator).bit_length()
    if bits * abs(int(exponent)) > MAX_BITS:
        raise OverflowError(f"the power has more than {MAX_BITS} bits; use floating-point numbers, as in 2.0**9000")
    return cast(Number, Fraction(base) ** int(exponent))


def _called(name: str, values: list[Number]) -> Number:
    if name in _COUNTING:
        function, most = _COUNTING[name]
        if any(value > most for value in values):
            raise OverflowError(f"{name} of more than {most}")
        return function(*map(_whole, values))
    if name not in _FUNCTIONS:
        known = ", ".join(sorted({*_FUNCTIONS, *_COUNTING}))
        raise ValueError(f"there is no function {name!r}; expected one of {known}")
    given = (int(one) if isinstance(one, Fraction) and one.denominator == 1 else one for one in values)
    return cast(Number, _FUNCTIONS[name](*given))


def _whole(value: Number) -> int:
    if value != int(value):
        raise ValueError(f"{value} is not an integer")
    return int(value)


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise ArithmeticError("the result is a complex number")
    if isinstance(value, int | Fraction) and max(abs(value.numerator), value.denominator).bit_length() > MAX_BITS:
        raise OverflowError(f"a number has more than {MAX_BITS} bits")
    return cast(Number, value)


def tool_server(arguments: Sequence[str] = ()) -> BundledServer:
    description = "Computes an arithmetic expression. Integers and fractions are exact."
    return server_of("calculator", [BundledTool("calculate", description, CalculatorArguments, calculate, quick=True)])


if __name__ == "__main__":
    run(tool_server(sys.argv[1:]))
