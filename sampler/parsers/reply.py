"""The result of every parser, and its builder. A malformed reply is data, never an exception.

Promises of all families
  * An error in a call becomes a message to the model (the turn is a `formaterror`); the correct calls are kept. Nothing is
    lost and nothing is fatal.
  * Arguments can be stored and sent: at most 64 levels, whole numbers of 64 bits, finite floats, valid characters.
  * Reasoning is separated and never searched for calls.
  * Time is linear in the length of the reply: at most MAX_CALLS calls are read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

THINK, END_THINK = "<think>", "</think>"
MAX_CALLS = 64
# MongoDB stores 100 levels, pydantic serializes 255.
MAX_DEPTH = 64

ToolSchemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`id`: the model's own, in families that write one; else empty."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """`content`: the text without reasoning and calls. `errors`: one message to the model per malformed call."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reasoning: str = ""


# Takes the reply's text without its end-of-turn token, and the tools, whose schemas type the untyped arguments.
Parser = Callable[[str, ToolSchemas], ParsedReply]


class ReplyBuilder:
    """`form`: the expected format of a call, quoted in every error."""

    def __init__(self, reasoning: str, form: str) -> None:
        self._reasoning = reasoning
        self._form = form
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._errors: list[str] = []

    @property
    def number(self) -> int:
        """Number of the next call, counted from 1."""
        return len(self._calls) + len(self._errors) + 1

    def is_full(self) -> bool:
        """Whether MAX_CALLS is reached: the caller stops. Adds one error for the model."""
        if self.number <= MAX_CALLS:
            return False
        self._errors.append(f"more than {MAX_CALLS} tool calls in one reply; the rest were not read")
        return True

    def text(self, text: str) -> None:
        self._content.append(text)

    def error(self, problem: str) -> None:
        """`problem`: a predicate, such as "is not closed"."""
        self._errors.append(f"tool call {self.number} {problem}; expected {self._form}")

    def call(self, name: Any, arguments: Any, call_id: str = "") -> None:
        """Add a call, or an error if it is malformed."""
        if not isinstance(name, str) or not name:
            self.error('has no "name"')
        elif not isinstance(arguments, dict):
            self.error(f'has "arguments" that are {type(arguments).__name__}, not an object')
        elif problem := _problem_of_plain(name) or _problem_of_plain(call_id) or problem_of(arguments):
            self.error(f"cannot be used: {problem}")
        else:
            self._calls.append(ToolCall(name, arguments, call_id))

    def done(self) -> ParsedReply:
        return ParsedReply("".join(self._content).strip(), self._calls, self._errors, self._reasoning)


def split_reasoning(text: str, think: str = THINK, end_think: str = END_THINK) -> tuple[str, str]:
    """The reasoning and the rest. If the prompt opened the reasoning, the reply only closes it."""
    before, found, after = text.partition(end_think)
    if found:
        return before.replace(think, "", 1).strip(), after
    if text.lstrip().startswith(think):  # cut off during reasoning
        return text.replace(think, "", 1).strip(), ""
    return "", text


def problem_of(arguments: dict[str, Any]) -> str:
    """Why the arguments cannot be stored and sent; empty if they can."""
    level: list[Any] = [arguments]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return ""
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
                if any("\0" in key for key in value):
                    return "the character \\u0000 is not allowed in a name"
            elif isinstance(value, list):
                inner += value
            elif problem := _problem_of_plain(value):
                return problem
        level = inner
    return f"nested more than {MAX_DEPTH} levels deep"


def _problem_of_plain(value: Any) -> str:
    if isinstance(value, str):
        if "\0" in value:
            return "the character \\u0000 is not allowed"
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "half of a surrogate pair"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"{value} is no JSON"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number has more than 64 bits; write it as a string"
    return ""
