"""The bundled example's world: owners of boxes, their favorite colors, and arithmetic.

Contains the registry file `world.json`, the tool server's three look-ups, and the tools' descriptions.
Promise: a look-up answers from the registry or by arithmetic, or raises `LookupFailed` with the text for the model;
nothing is evaluated as Python.
"""

import ast
import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLORS = ("red", "blue", "green", "gray", "pink", "teal", "black", "white", "brown", "purple", "orange", "yellow")

# Bounds the parser's work and the size of a product (at most forty digits).
MAX_EXPRESSION_CHARS = 40
_EXPRESSION = re.compile(rf"[0-9+\-*() ]{{1,{MAX_EXPRESSION_CHARS}}}")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class LookupFailed(ValueError):
    """The requested entry does not exist; the model reads the message."""


@dataclass(frozen=True)
class World:
    """`owners`: box -> owner code; `favorite_colors`: owner code -> color."""

    owners: dict[str, str]
    favorite_colors: dict[str, str]

    @classmethod
    def load(cls, path: Path) -> "World":
        """Read a `world.json`. Raises KeyError for a missing key."""
        data = json.loads(path.read_text())
        return cls(owners=data["owners"], favorite_colors=data["favorite_colors"])

    def box_owner(self, box: str) -> str:
        if box not in self.owners:
            raise LookupFailed(f"unknown box {box[:40]}")
        return self.owners[box]

    def favorite_color(self, person: str) -> str:
        if person not in self.favorite_colors:
            raise LookupFailed(f"unknown person {person[:40]}")
        return self.favorite_colors[person]


def calculate(expression: str) -> int:
    """The value of an expression of whole numbers with + - * and parentheses."""
    malformed = f"malformed expression {expression[:MAX_EXPRESSION_CHARS]}, use numbers with + - *"
    if not _EXPRESSION.fullmatch(expression):
        raise LookupFailed(malformed)
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, LookupFailed) as error:
        raise LookupFailed(malformed) from error


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise LookupFailed(type(node).__name__)


def tool_schema(name: str, parameter: str) -> dict[str, Any]:
    """The schema of a tool with one text parameter, in OpenAI's format, which chat templates expect."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


# In the tool server's order, so that a demonstration's prompt equals an episode's prompt.
TOOLS = [
    tool_schema("calculator", "expression"),
    tool_schema("box_owner", "box"),
    tool_schema("favorite_color", "person"),
]
