"""What a Gymnasium world shows, as text for the model: observations as JSON, drawings without a terminal's escapes."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from sampler.environments.checked_step import WrongStep, plain, shown
from sampler.environments.environment import TaskRefused

MAX_NUMBERS = 1000  # of an observation: one number is two tokens and more
EXPECTED = (
    f"at most {MAX_NUMBERS:,} numbers: images are not supported yet; choose other observations (options such as obs_type, a "
    "wrapper of the package), or wrap the world in an environment of your own"
)
_STYLE = re.compile(r"\x1b\[([\d;]*)m")
# How a drawing's colors are told: by brackets of their own, so that what stands in one place stays apart.
BRACKETS = {"blue": ("(", ")"), "magenta": ("<", ">"), "green highlight": ("{", "}")}
LEGENDS = {
    "Taxi": "In the drawing [ ] is the empty taxi, { } the taxi with its passenger, ( ) where the passenger waits, and < > the "
    "destination."
}
_COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")


def require_small(name: str, space: Any) -> None:
    """Raises TaskRefused for a world that shows images."""
    if (found := num_values(space)) > MAX_NUMBERS:
        raise TaskRefused(f"{name} shows {shown(space)}: {found:,} numbers at each step; expected {EXPECTED}")


def num_values(space: Any) -> int:
    """Numbers of one observation; of a space without a fixed number, those that are known."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return sum(num_values(part) for part in (parts.values() if hasattr(parts, "values") else parts))
    shape = getattr(space, "shape", None)
    return math.prod(shape) if shape else 1


def as_text(observation: Any) -> str:
    """Raises WrongStep for more numbers than a prompt takes, and for what is no observation."""
    found = plain("observation", observation)
    if isinstance(found, str):
        return found
    if (count := _count(found)) > MAX_NUMBERS:
        raise WrongStep(f"an observation of {count:,} numbers", observation, EXPECTED)
    return json.dumps(found, ensure_ascii=False)


def _count(value: Any) -> int:
    parts: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_count, parts)) if parts else 1


def drawing(rendered: Any) -> str:
    """The text that a world draws, or a list of its lines, or a file of it; empty where it draws nothing."""
    if rendered is None:
        return ""
    if isinstance(rendered, list | tuple):
        return "\n".join(drawing(line) for line in rendered)
    read = getattr(rendered, "getvalue", None)
    text = read() if callable(read) else rendered
    if not isinstance(text, str):
        raise WrongStep("render", rendered, "text")
    return _bracketed(text).strip("\n")


def _bracketed(text: str) -> str:
    """Colored parts in brackets, also where one is in another."""
    made, ends, at = [], [], 0
    for style in _STYLE.finditer(text):
        made.append(text[at : style.start()])
        at = style.end()
        codes = [int(code) for code in style[1].split(";") if code]
        if any(codes):
            begin, end = BRACKETS.get(_color(codes), ("[", "]"))
            made.append(begin)
            ends.append(end)
        elif ends:
            made.append(ends.pop())
    return "".join([*made, text[at:], *reversed(ends)])


def _color(codes: Sequence[int]) -> str:
    for code in codes:
        if 30 <= code < 30 + len(_COLORS):
            return _COLORS[code - 30]
        if 40 <= code < 40 + len(_COLORS):
            return f"{_COLORS[code - 40]} highlight"
    return ""
