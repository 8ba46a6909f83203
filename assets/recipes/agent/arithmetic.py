"""The agent's tool: a calculator."""

import ast
import operator

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(expression: str) -> str:
    """Calculates/evaluates the given expression.

    Numbers of more than 15 digits are rounded.
    """
    try:
        return f"{value(ast.parse(expression, mode='eval').body):.15g}"
    except (SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError, RecursionError) as exc:
        return f"error: {type(exc).__name__}"


def value(node: ast.expr) -> float:
    """Of numbers and the four operations; KeyError or TypeError for anything else."""
    if isinstance(node, ast.BinOp):
        return SIGNS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    raise TypeError(ast.dump(node))
