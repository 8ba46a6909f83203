"""What a world returns, checked in one place: a `Step` of plain values, or `WrongStep`. Standard library only, as workers are.

    Environment.start / interact ─▶ checked ─▶ JSON for the service          numpy's and torch's numbers ─▶ numbers
                                        └─▶ WrongStep: field, found, expected        terminals' escapes in texts ─▶ left out

The world's code is what is wrong then, so playing the episode again cannot help: it fails once, and is never scored.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.environment import MAX_SEATS, RUNNING, SCORE, STATUSES, Step

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_SHOWN = 80
MAX_LEVELS = 64
WHOLE = 2**63
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")


class WrongStep(Exception):
    """A world returned what is no step. The text names the field, what was found and what is expected."""

    def __init__(self, field: str, found: object, expected: str) -> None:
        super().__init__(f"{field} is {shown(found)}; expected {expected}")


def checked(step: object) -> dict[str, Any]:
    """The step as JSON. Raises WrongStep."""
    if not isinstance(step, Step):
        raise WrongStep("the step", step, "a Step, of sampler.environments: Step(user_says('…'), reward=0.0)")
    if step.status not in STATUSES:
        raise WrongStep("status", step.status, f"one of {', '.join(STATUSES)}")
    messages = [_message(f"messages.{k}", one) for k, one in enumerate(_listed("messages", step.messages))]
    if step.status == RUNNING and not messages:
        raise WrongStep("messages", step.messages, "a message for the model, as long as the status is running")
    told: dict[str, Any] = {
        "messages": messages,
        "tools": None if step.tools is None else _tools(step.tools),
        "status": str(step.status),
        "finish": step.status != RUNNING,
        "reward": None if step.reward is None else number("reward", step.reward),
        "metrics": _metrics(step.metrics),
        "result": plain("result", step.result),
    }
    if step.seat is not None:
        told["seat"] = _seat("seat", step.seat)
    if step.rewards:
        rewards = _mapped("rewards", step.rewards)
        told["rewards"] = {str(_seat("rewards", seat)): number(f"rewards.{seat}", one) for seat, one in rewards.items()}
    return told


def number(field: str, value: object) -> float:
    """Of whatever is one number: also numpy's, torch's, a Decimal. Raises WrongStep."""
    if not isinstance(value, str | bytes) and not getattr(value, "shape", ()):
        try:
            found = float(value)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - a foreign value's own method: whatever it raises, it is no number
            found = math.nan
        if math.isfinite(found):
            return found
    raise WrongStep(field, value, "a finite number, or None where nothing is known")


def plain(field: str, value: object, depth: int = 0) -> Any:
    """As JSON has it: arrays become lists, and their numbers numbers. Raises WrongStep."""
    if depth > MAX_LEVELS:
        raise WrongStep(field, value, f"at most {MAX_LEVELS} levels")
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if not -WHOLE <= value < WHOLE:
            raise WrongStep(field, value, "a whole number of 64 bits")
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): plain(f"{field}.{name}", one, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(f"{field}.{k}", one, depth + 1) for k, one in enumerate(value)]
    as_list = getattr(value, "tolist", None)  # of numpy and torch: of a single number, the number
    if callable(as_list):
        return plain(field, as_list(), depth + 1)
    raise WrongStep(field, value, "text, numbers, lists and dicts")


def without_escapes(text: str) -> str:
    """Without the sequences by which a terminal colors text or moves its cursor."""
    return _ESCAPE.sub("", text) if "\x1b" in text else text


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


def _content(field: str, content: object, *, called: bool) -> str | None:
    """Texts, in parts too. `called`: an assistant's message with tool calls needs none."""
    if isinstance(content, str):
        return without_escapes(str(content))
    if content is None and called:
        return None
    if not isinstance(content, list | tuple):
        raise WrongStep(field, content, "text")
    texts: list[str] = []
    for k, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            found = part if kind is None else kind
            raise WrongStep(f"{field}.{k}.type", found, "'text': a world's messages are text, images are not supported")
        if not isinstance(part.get("text"), str):
            raise WrongStep(f"{field}.{k}.text", part.get("text"), "text")
        texts.append(without_escapes(str(part["text"])))
    return "\n".join(texts)


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
    found = {str(name): value for name, value in _mapped("metrics", metrics).items() if value is not None}
    return {
        name: number(f"metrics.{name}", one) if name == SCORE else _metric(name, one) for name, one in found.items()
    }


def _metric(name: str, value: object) -> Any:
    try:
        return number(f"metrics.{name}", value)
    except WrongStep:
        return plain(f"metrics.{name}", value)


def _seat(field: str, seat: Any) -> int:
    if not isinstance(seat, bool) and hasattr(seat, "__index__"):
        found = int(seat.__index__())
        if 0 <= found < MAX_SEATS:
            return found
    raise WrongStep(field, seat, f"the number of a seat, from 0 to {MAX_SEATS - 1}")
