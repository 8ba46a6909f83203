"""The result of every parser, and its builder. A malformed reply is data, never an exception.

Promises of all families
  * An error in a call becomes a message to the model (the turn is a `formaterror`); the correct calls are kept. Nothing is
    lost and nothing is fatal.
  * A call has the arguments that the model wrote, or is an error: two values of one name, two places for arguments, numbers whose
    digits no 64-bit number has and a missing end between two arguments are errors.
  * Arguments can be stored and sent: at most 64 levels, whole numbers of 64 bits, finite floats, valid characters.
  * Reasoning is separated and never searched for calls.
  * Time is linear in the length of the reply: at most MAX_CALLS calls are read.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sampler.core.parsers.json_values import read_json
from shared import outside_values

THINK, END_THINK = "<think>", "</think>"
MAX_CALLS = 64

ToolSchemas = Sequence[Mapping[str, Any]]


def schema_of(tools: ToolSchemas, name: str) -> Mapping[str, Any] | None:
    """The function `name` with its `parameters`. None: it is not among the tools."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            return function
    return None


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
        """Add a call, or an error if it is malformed. `arguments`: an object, or a text that is one in JSON."""
        if isinstance(arguments, str):
            value, why = read_json(arguments)
            arguments = value if not why and isinstance(value, dict) else arguments
        if not isinstance(name, str) or not name:
            self.error('has no "name"')
        elif not isinstance(arguments, dict):
            self.error(f'has "arguments" that are {type(arguments).__name__}, not an object')
        elif problem := problem_of({"name": name, "id": call_id, "arguments": arguments}):
            self.error(f"cannot be used: {problem}")
        else:
            self._calls.append(ToolCall(name, arguments, call_id))

    def done(self) -> ParsedReply:
        return ParsedReply("".join(self._content).strip(), self._calls, self._errors, self._reasoning)


def without_calls(parsed: ParsedReply, text: str) -> ParsedReply:
    """The reply `text` to a request that allows no calls: what looks like one is content."""
    if not (parsed.tool_calls or parsed.errors):
        return parsed
    reasoning, rest = split_reasoning(text)
    return ParsedReply(rest.strip(), reasoning=reasoning)


def split_reasoning(
    text: str, think: str = THINK, end_think: str = END_THINK, calls: tuple[str, str] | None = None
) -> tuple[str, str]:
    """All reasoning, and the rest. If the prompt opened the reasoning, the reply only closes it.

    `calls`: the tags around a call. A tag of reasoning inside of them is a part of the call, and a call inside of reasoning is a
    part of the reasoning. Linear in the length of the text.
    """
    if end_think not in text:
        return (text.replace(think, "", 1).strip(), "") if text.lstrip().startswith(think) else ("", text)  # cut off
    reasoning: list[str] = []
    rest: list[str] = []
    start = 0
    for begin, inner, end in _reasoning_in(text, think, end_think, calls):
        if begin == inner:  # the prompt opened it
            reasoning.append(text[:end].replace(think, "", 1))
        else:
            rest.append(text[start:begin])
            reasoning.append(text[inner:end])
        start = end + len(end_think)
    return "\n".join(part for one in reasoning if (part := one.strip())), "".join([*rest, text[start:]])


def _reasoning_in(
    text: str, think: str, end_think: str, calls: tuple[str, str] | None
) -> Iterator[tuple[int, int, int]]:
    """Where each reasoning outside of calls begins, where its text does, and where its end tag stands. The first may have no
    opening tag: then it begins with the text."""
    opening, closing = calls or (think, end_think)
    tags = [*re.finditer("|".join(map(re.escape, dict.fromkeys((think, end_think, opening, closing)))), text)]
    following = _next_of(tags)
    at, is_first = 0, True
    while at < len(tags):
        name, behind = tags[at].group(), following[at]
        end, closed = behind.get(end_think), behind.get(closing)
        if name == end_think and is_first:
            yield 0, 0, tags[at].start()
            is_first = False
        elif name == think:
            if end is None:
                return
            yield tags[at].start(), tags[at].end(), tags[end].start()
            at, is_first = end, False
        elif name == opening and closed is not None:
            is_behind = end is not None and end < closed and following[end].get(opening, closed) < closed
            at = at if is_behind else closed  # else the end tag stands behind an opening that is no call's
        at += 1


def _next_of(tags: Sequence[re.Match[str]]) -> list[Mapping[str, int]]:
    """Of each tag: the index of the next one of each name."""
    following: list[Mapping[str, int]] = []
    known: dict[str, int] = {}
    for index in range(len(tags) - 1, -1, -1):
        following.append(known)
        known = known | {tags[index].group(): index}
    return following[::-1]


def problem_of(members: dict[str, Any]) -> str:
    """Why one of the members cannot be stored and sent; empty if all can."""
    problem = outside_values.problem_of(members, most_depth=outside_values.MAX_DEPTH + 1)
    return "" if problem is None else str(problem)
