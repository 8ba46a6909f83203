"""From a reply's text to its tool calls. A reply that is malformed is data, never an exception.

Hermes form, as Qwen and others write it:

    I look it up.
    <tool_call>
    {"name": "box_owner", "arguments": {"box": "A"}}
    </tool_call>

What is wrong with a call becomes a text that is answered to the model (the turn is a `formaterror`); calls that are
right stand beside it. Reasoning, up to the first `</think>`, is set apart and never searched for calls. Time is linear
in the length of the reply, whatever it contains.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import ConfigError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"
FORM = f'{OPEN}{{"name": "…", "arguments": {{…}}}}{CLOSE}'

# A closing tag may stand inside a JSON string. Further ones are tried, but few, which keeps the time linear.
_CLOSING_TAGS_TRIED = 4
_MAX_CALLS = 64
# MongoDB stores 100 levels, pydantic serializes 255.
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`raw` is the JSON text as the model wrote it."""

    name: str
    arguments: Mapping[str, Any]
    raw: str = ""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """`content`: the text without reasoning and calls. `errors`: one text per malformed call, to be told to the model."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    reasoning: str = ""


Parser = Callable[[str], ParsedReply]


def parse_hermes(text: str) -> ParsedReply:
    """Give the reply's text without its end-of-turn token."""
    reasoning, rest = _split_reasoning(text)
    content: list[str] = []
    reply = ParsedReply(content="", reasoning=reasoning)
    at = 0
    while (start := rest.find(OPEN, at)) >= 0:
        content.append(rest[at:start])
        number = len(reply.tool_calls) + len(reply.errors) + 1
        if number > _MAX_CALLS:
            reply.errors.append(f"more than {_MAX_CALLS} tool calls in one reply; the rest were not read")
            at = len(rest)
            break
        at = _read_call(rest, start + len(OPEN), number, reply)
    content.append(rest[at:])
    return ParsedReply("".join(content).strip(), reply.tool_calls, reply.errors, reasoning)


def _split_reasoning(text: str) -> tuple[str, str]:
    before, found, after = text.partition(END_THINK)
    if found:
        return before.replace(THINK, "", 1).strip(), after
    if text.lstrip().startswith(THINK):  # cut off while still thinking
        return text.replace(THINK, "", 1).strip(), ""
    return "", text


def _read_call(text: str, start: int, number: int, reply: ParsedReply) -> int:
    """Read the call whose body begins at `start` into `reply`; returns where the text goes on."""
    first_end = end = text.find(CLOSE, start)
    if end < 0:
        reply.errors.append(f"tool call {number} is not closed; expected {FORM}")
        return len(text)
    problem = ""
    for _ in range(_CLOSING_TAGS_TRIED):
        body = text[start:end].strip()
        value, why = _read_json(body)
        if not why:
            _add_call(value, body, number, reply)
            return end + len(CLOSE)
        problem = problem or why
        end = text.find(CLOSE, end + len(CLOSE))
        if end < 0:
            break
    reply.errors.append(f"tool call {number} is not valid JSON: {problem}; expected {FORM}")
    return first_end + len(CLOSE)


def _read_json(body: str) -> tuple[Any, str]:
    """A value, or why there is none."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_int=_int64)
        if body.count("{") + body.count("[") > _MAX_DEPTH and _is_deep(value):
            return None, f"nested more than {_MAX_DEPTH} levels deep"
        if "\\u0000" in body:
            return None, "the character \\u0000 is not allowed"
        if "\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # an escaped half of a surrogate pair is no text
    except json.JSONDecodeError as exc:
        return None, f"{exc.msg} at character {exc.pos + 1}"
    except RecursionError:
        return None, f"nested more than {_MAX_DEPTH} levels deep"
    except UnicodeEncodeError:
        return None, "half of a surrogate pair"
    except ValueError as exc:  # from the two functions below
        return None, str(exc)
    return value, ""


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _items(outer)]
    return bool(level)


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _int64(digits: str) -> int:
    """Larger numbers cannot be stored, and few tools would take them."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError("a whole number has more than 64 bits; write it as a string")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _add_call(value: Any, body: str, number: int, reply: ParsedReply) -> None:
    problem = ""
    if not isinstance(value, dict):
        problem = f"is {type(value).__name__}, not an object"
    elif not isinstance(value.get("name"), str) or not value["name"]:
        problem = 'has no "name"'
    elif not isinstance(value.get("arguments", {}), dict):
        problem = f'has "arguments" that are {type(value["arguments"]).__name__}, not an object'
    if problem:
        reply.errors.append(f"tool call {number} {problem}; expected {FORM}")
    else:
        reply.tool_calls.append(ToolCall(value["name"], value.get("arguments", {}), body))


PARSERS: dict[str, Parser] = {"hermes": parse_hermes}


def get_parser(name: str) -> Parser:
    """Raises ConfigError for an unknown name."""
    if name not in PARSERS:
        raise ConfigError(f"tool-call parser {name!r} is unknown; expected one of {', '.join(sorted(PARSERS))}")
    return PARSERS[name]
