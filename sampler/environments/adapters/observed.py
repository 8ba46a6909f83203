"""What a Gymnasium world shows, as text for the model: observations as JSON, drawings with brackets for a terminal's colors."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.checked_step import WrongStep, plain, shown
from sampler.environments.environment import TaskRefused
from sampler.environments.plain_text import plain_text

MAX_NUMBERS = 1000  # of an observation: one number is two tokens and more
EXPECTED = (
    f"at most {MAX_NUMBERS:,} numbers as text: choose other observations (options such as obs_type, a wrapper of the package), "
    "or have images shown (show: pixels or render; image_fields of OpenEnv's)"
)
LEGENDS = {
    "Taxi": "In the drawing [ ] is the empty taxi, { } the taxi with its passenger, ( ) where the passenger waits, and < > the "
    "destination."
}


def require_small(name: str, space: Any, count: int) -> None:
    """Raises TaskRefused for a world whose text has too many numbers."""
    if count > MAX_NUMBERS:
        raise TaskRefused(f"{name} shows {shown(space)}: {count:,} numbers at each step; expected {EXPECTED}")


def num_values(space: Any) -> int:
    """Numbers of one observation; of a space without a fixed number, those that are known."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return sum(num_values(part) for part in (parts.values() if hasattr(parts, "values") else parts))
    shape = getattr(space, "shape", None)
    return math.prod(shape) if shape else 1


def require_fits(space: Any, observation: Any, field: str = "observation") -> None:
    """Raises WrongStep for an observation of another shape than its world says, where that is known: numbers, Dict and Tuple."""
    kind = type(space).__name__
    if kind == "Dict":
        if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
            raise WrongStep(
                field, observation, f"a dict with {', '.join(map(str, space.spaces))}, by the world's space"
            )
        for name, part in space.spaces.items():
            require_fits(part, observation[name], f"{field}.{name}")
    elif kind == "Tuple":
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            raise WrongStep(field, observation, f"{len(space.spaces)} values, by the world's space")
        for k, part in enumerate(space.spaces):
            require_fits(part, observation[k], f"{field}.{k}")
    elif kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary") and _shape(observation) != tuple(space.shape):
        raise WrongStep(field, observation, f"numbers of shape {tuple(space.shape)}, by the world's space")


def _shape(value: Any) -> tuple[int, ...] | None:
    """None: of no numbers."""
    dimensions = getattr(value, "shape", None)
    if dimensions is not None:
        return tuple(dimensions)
    if isinstance(value, list | tuple):
        inner = {_shape(one) for one in value} or {()}
        only = inner.pop() if len(inner) == 1 else None
        return None if only is None else (len(value), *only)
    return () if isinstance(value, int | float) else None


def as_text(observation: Any) -> str:
    """Raises WrongStep for more numbers than a prompt takes, and for what is no observation."""
    value = plain("observation", observation)
    if isinstance(value, str):
        return plain_text(value)
    count = _count(value)
    if count > MAX_NUMBERS:
        raise WrongStep(f"an observation of {count:,} numbers", observation, EXPECTED)
    return json.dumps(_texts(value), ensure_ascii=False)


def _texts(value: Any) -> Any:
    """With plain texts: JSON would write their escapes out."""
    if isinstance(value, dict):
        return {plain_text(name): _texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return plain_text(value) if isinstance(value, str) else value


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
    text = bytes(text).decode("utf-8", "backslashreplace") if isinstance(text, bytes | bytearray) else text
    if not isinstance(text, str):
        raise WrongStep("render", rendered, "text, a list of lines, or a StringIO")
    return plain_text(text).strip("\n")
