"""What a world returns, checked in one place: a `Step` of plain values, or `WrongStep`. Standard library only, as workers are.

    Environment.start / interact ─▶ checked ─▶ JSON for the service          numpy's and torch's numbers ─▶ numbers
                                        └─▶ WrongStep: field, found, expected        terminals' escapes in texts ─▶ left out
                                                                                     arrays among contents ─▶ PNG, in a data: URL

The world's code is what is wrong then, so playing the episode again cannot help: it fails once, and is never scored.
"""

import collections
import dataclasses
import enum
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from sampler.environments.environment import (
    MAX_SEATS,
    MAX_STEP_IMAGE_BYTES,
    MAX_STEP_IMAGES,
    RUNNING,
    SCORE,
    STATUSES,
    Step,
)
from sampler.environments.pixels import NotAnImage, image_file, is_image
from sampler.environments.plain_text import plain_text
from shared.images.bounds import IMAGE_ROLES
from shared.images.header import data_url
from shared.scores import EXPECTED, is_usable, real_number, usable_score

ROLES = ("system", "developer", "user", "assistant", "tool")
IMAGE_NAMES = ("image", "bytes", "base64", "url")  # of what a block of type image has
MAX_SHOWN = 80
MAX_LEVELS = 64
WHOLE = 2**63
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class WrongStep(Exception):
    """A world returned what is no step. The text names the field, what was found and what is expected."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shown(value)}; expected {expected}")


def checked(step: object) -> dict[str, Any]:
    """The step as JSON. Raises WrongStep."""
    if not isinstance(step, Step):
        raise WrongStep("the step", step, "a Step, of sampler.environments: Step(user_says('…'), reward=0.0)")
    if step.status not in STATUSES:
        raise WrongStep("status", step.status, f"one of {', '.join(STATUSES)}")
    messages = [_message(f"messages.{k}", one) for k, one in enumerate(_listed("messages", step.messages))]
    _require_few_images(messages)
    if step.status == RUNNING and not messages:
        raise WrongStep("messages", step.messages, "a message for the model, as long as the status is running")
    values: dict[str, Any] = {
        "messages": messages,
        "tools": None if step.tools is None else _tools(step.tools),
        "status": str(step.status),
        "finish": step.status != RUNNING,
        "reward": None if step.reward is None else number("reward", step.reward),
        "metrics": _metrics(step.metrics),
        "result": plain("result", step.result),
    }
    if step.seat is not None:
        values["seat"] = _seat("seat", step.seat)
    if step.rewards:
        rewards = _mapped("rewards", step.rewards)
        values["rewards"] = {
            str(_seat("rewards", seat)): number(f"rewards.{seat}", one) for seat, one in rewards.items()
        }
    return values


def number(field: str, value: object, expected: str = f"{EXPECTED}, or None where nothing is known") -> float:
    """Of whatever is one number that a score may be: also numpy's, torch's, a Decimal. Raises WrongStep."""
    if not is_usable(value):
        raise WrongStep(field, value, expected)
    return usable_score(value)


def truth(field: str, value: object) -> bool:
    """Of a bool, also numpy's and torch's. Raises WrongStep."""
    if isinstance(value, bool):
        return value
    if str(getattr(value, "dtype", "")) in ("bool", "torch.bool") and not getattr(value, "shape", ()):
        return bool(value)
    raise WrongStep(field, value, "True or False")


def plain(field: str, value: object, depth: int = 0) -> Any:
    """As JSON has it. Arrays, sets, dataclasses and named tuples become lists and objects, bytes text, and what is no finite
    number the text NaN, Infinity or -Infinity. Raises WrongStep."""
    if depth > MAX_LEVELS:
        raise WrongStep(field, value, f"at most {MAX_LEVELS} levels")
    if value is None or isinstance(value, str | bool | float | int):
        return _simple(field, value)
    parts = _parts(value)
    if isinstance(parts, Mapping):
        return _named(field, parts, depth)
    if isinstance(parts, list):
        return [plain(f"{field}.{k}", one, depth + 1) for k, one in enumerate(parts)]
    if parts is not value:
        return plain(field, parts, depth + 1)
    raise WrongStep(field, value, "text, numbers, lists and dicts")


def _simple(field: str, value: str | float | bool | None) -> Any:
    """Of JSON's own types, and of what inherits them, such as members of a StrEnum."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else NOT_FINITE[str(float(value))]
    if not -WHOLE <= value < WHOLE:
        raise WrongStep(field, value, "a whole number of 64 bits")
    return int(value)


def _parts(value: Any) -> Any:
    """Of a value that is none of JSON's: a dict, a list or one of JSON's; itself, where it is none of them."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):  # of a named tuple
        return value._asdict()
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # as they come, their order would be that of the process
    if isinstance(value, list | tuple | range | collections.deque):
        return list(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Decimal | Fraction | complex | PurePath | date | time):
        return str(value)
    as_list = getattr(value, "tolist", None)  # of numpy and torch: of a single number, the number
    return as_list() if callable(as_list) else value


def _named(field: str, parts: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    named = {_name(name): plain(f"{field}.{_name(name)}", one, depth + 1) for name, one in parts.items()}
    if len(named) < len(parts):
        raise WrongStep(field, parts, "names that differ as texts")
    return named


def _name(name: Any) -> str:
    """Of an entry: numbers of any package as their digits."""
    text = name if isinstance(name, str) else plain("a name", name)
    return text if isinstance(text, str) else json.dumps(text)


def shown(value: object) -> str:
    """A short form, with its type where that is not clear."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign value's own method
        text = "a value that cannot be shown"
    text = " ".join(text.split())
    text = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
    return text if value is None or isinstance(value, str | int | float) else f"{text} ({type(value).__name__})"


# ---------------------------------------------------------------------- parts


def _listed(field: str, value: object) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise WrongStep(field, value, "a list of messages, such as user_says('…')")


def _mapped(field: str, value: object) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    raise WrongStep(field, value, "a dict")


def _message(field: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise WrongStep(field, message, "a message: {'role': 'user', 'content': '…'}")
    if message.get("role") not in ROLES:
        raise WrongStep(f"{field}.role", message.get("role"), f"one of {', '.join(ROLES)}")
    rest = plain(field, {name: value for name, value in message.items() if name != "content"})
    return {
        **rest,
        "content": _content(f"{field}.content", message.get("content"), called=bool(rest.get("tool_calls"))),
    }


def _content(field: str, content: object, *, called: bool) -> str | list[dict[str, Any]] | None:
    """A text, or parts of text and images. Texts alone become one. `called`: an assistant's message with tool calls needs
    none."""
    if isinstance(content, str):
        return plain_text(str(content))
    if content is None and called:
        return None
    if not isinstance(content, list | tuple):
        if not is_image(content):
            raise WrongStep(field, content, "text, or a list of texts and images")
        content = [content]
    parts = [_part(f"{field}.{k}", part) for k, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(field: str, part: object) -> dict[str, Any]:
    if isinstance(part, str) or is_image(part):
        part = {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in ("text", "image", "image_url"):
        raise WrongStep(f"{field}.type", part if kind is None else kind, "'text' or 'image'")
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise WrongStep(f"{field}.text", part.get("text"), "text")
        return {"type": "text", "text": plain_text(str(part["text"]))}
    name = "image_url" if kind == "image_url" else next((one for one in IMAGE_NAMES if one in part), "image")
    value = part.get(name)
    return image_part(f"{field}.{name}", value.get("url") if isinstance(value, Mapping) else value)


def image_part(field: str, value: object, longest_edge: int | None = None) -> dict[str, Any]:
    """Of a content, as the protocol has it. `longest_edge`: a larger image is scaled down. Raises WrongStep."""
    try:
        url = data_url(image_file(value, longest_edge), "the image")
    except NotAnImage as exc:
        raise WrongStep(field, value, str(exc)) from exc
    return {"type": "image_url", "image_url": {"url": url}}


def images_of(message: Mapping[str, Any]) -> list[str]:
    """Their URLs, of a message as the protocol has it."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def _require_few_images(messages: Sequence[Mapping[str, Any]]) -> None:
    for k, message in enumerate(messages):
        if message["role"] not in IMAGE_ROLES and images_of(message):
            raise WrongStep(
                f"messages.{k}.role", message["role"], f"{' or '.join(IMAGE_ROLES)}, where there are images"
            )
    lengths = [len(url) for message in messages for url in images_of(message)]
    if len(lengths) > MAX_STEP_IMAGES:
        raise WrongStep("the number of images", len(lengths), f"at most {MAX_STEP_IMAGES} in a step")
    if sum(lengths) * 3 // 4 > MAX_STEP_IMAGE_BYTES:
        most = f"at most {MAX_STEP_IMAGE_BYTES:,} bytes of images in a step: smaller ones (longest_edge), or JPEG"
        raise WrongStep("the size of images", sum(lengths) * 3 // 4, most)


def _tools(tools: object) -> list[Any]:
    if not isinstance(tools, list | tuple):
        raise WrongStep("tools", tools, "a list of tools, or None: as before")
    for k, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise WrongStep(f"tools.{k}", tool, "{'type': 'function', 'function': {'name': …, 'parameters': {…}}}")
    return [plain(f"tools.{k}", tool) for k, tool in enumerate(tools)]


def _metrics(metrics: object) -> dict[str, Any]:
    """Numbers, by name; what is none is the world's own business, but for the score."""
    given = {str(name): value for name, value in _mapped("metrics", metrics).items() if value is not None}
    return {
        name: number(f"metrics.{name}", one) if name == SCORE else _metric(name, one) for name, one in given.items()
    }


def _metric(name: str, value: object) -> Any:
    number = real_number(value)
    return plain(f"metrics.{name}", value) if number is None else number


def _seat(field: str, seat: Any) -> int:
    if not isinstance(seat, bool) and hasattr(seat, "__index__"):
        index = int(seat.__index__())
        if 0 <= index < MAX_SEATS:
            return index
    raise WrongStep(field, seat, f"the number of a seat, from 0 to {MAX_SEATS - 1}")
