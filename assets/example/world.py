"""The bundled example's world: who owns which box, which color each owner likes, and what a sum comes to.

Owns the registry file `world.json`, the three look-ups that the tool server offers, and the tools' descriptions.
Promise: a look-up answers from the registry or by arithmetic, or raises `LookupFailed` with the text that the model
is to read; nothing is ever evaluated as Python.
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

# Forty characters bound both the parser's work and the size of a product (at most forty digits).
MAX_EXPRESSION_CHARS = 40
_EXPRESSION = re.compile(rf"[0-9+\-*() ]{{1,{MAX_EXPRESSION_CHARS}}}")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class LookupFailed(ValueError):
    """A tool was asked for something that does not exist; the message is what the model reads."""


@dataclass(frozen=True)
class World:
    """`owners`: box -> owner code; `favorite_colors`: owner code -> color."""

    owners: dict[str, str]
    favorite_colors: dict[str, str]

    @classmethod
    def load(cls, path: Path) -> "World":
        """Read a `world.json`; a missing key is a `KeyError` that names it."""
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
    """The value of whole numbers joined by + - * and parentheses, in the usual order of operations."""
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
    """One tool with one text parameter, as chat templates and OpenAI-style requests expect it."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


# In the order in which the tool server lists them, so that a demonstration's prompt equals an episode's prompt.
TOOLS = [
    tool_schema("calculator", "expression"),
    tool_schema("box_owner", "box"),
    tool_schema("favorite_color", "person"),
]
