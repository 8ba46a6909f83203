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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sampler.parsers.json_values import read_json
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


def split_reasoning(text: str, think: str = THINK, end_think: str = END_THINK) -> tuple[str, str]:
    """The reasoning and the rest. If the prompt opened the reasoning, the reply only closes it."""
    before, found, after = text.partition(end_think)
    if found:
        return before.replace(think, "", 1).strip(), after
    if text.lstrip().startswith(think):  # cut off during reasoning
        return text.replace(think, "", 1).strip(), ""
    return "", text


def problem_of(members: dict[str, Any]) -> str:
    """Why one of the members cannot be stored and sent; empty if all can."""
    problem = outside_values.problem_of(members, most_depth=outside_values.MAX_DEPTH + 1)
    return "" if problem is None else str(problem)
