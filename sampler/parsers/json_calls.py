"""Reads JSON values from model text. Shared by the families that write arguments as JSON."""

import json
from typing import Any

from sampler.parsers.reply import ReplyBuilder
from shared.outside_values import MAX_DEPTH

# A closing tag may occur inside a JSON string. A few later ones are tried too; the bound keeps the time linear.
_CLOSING_TAGS_TRIED = 4
_MAX_HEAD = 1024


def read_json(body: str) -> tuple[Any, str]:
    """(value, ""), or (None, error)."""
    value, end, why = read_json_at(body, len(body) - len(body.lstrip()))
    if not why and body[end:].strip():
        return None, f"Extra data at character {end + 1}"
    return value, why


def read_json_at(text: str, at: int) -> tuple[Any, int, str]:
    """The value that begins exactly at `at`, its end, and the error if there is none."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as exc:
        return None, at, f"{exc.msg} at character {exc.pos - at + 1}"
    except RecursionError:
        return None, at, f"nested more than {MAX_DEPTH} levels deep"
    except ValueError as exc:  # raised by the two functions below
        return None, at, str(exc)
    return value, end, ""


def read_head(
    text: str, start: int, separator: str, opening: str, close: str, reply: ReplyBuilder
) -> tuple[str, int] | None:
    """The text before `separator`, which names the call, and the start of the body. None: `reply` has the error."""
    end = text.find(separator, start, start + _MAX_HEAD)
    if end < 0 or next_call(text, start, opening, close) <= end:
        reply.error(f"has no {separator} behind its name")
        return None
    return text[start:end].strip(), end + len(separator)


def read_closed_json(text: str, start: int, close: str, reply: ReplyBuilder) -> tuple[Any, int] | None:
    """The JSON between `start` and the tag `close`, and where parsing resumes. None: `reply` has the error."""
    end = text.find(close, start)
    if end < 0:
        reply.error("is not closed")
        return None
    problem = ""
    for _ in range(_CLOSING_TAGS_TRIED):
        value, why = read_json(text[start:end])
        if not why:
            return value, end + len(close)
        problem = problem or why
        end = text.find(close, end + len(close))
        if end < 0:
            break
    reply.error(f"is not valid JSON: {problem}")
    return None


def after_tag(text: str, start: int, close: str) -> int:
    """Index after the next closing tag; the text's end without one."""
    end = text.find(close, start)
    return end + len(close) if end >= 0 else len(text)


def next_call(text: str, at: int, opening: str, close: str) -> int:
    """Where parsing resumes after a malformed call: after its end, but not beyond the start of the next."""
    following = text.find(opening, at)
    end = after_tag(text, at, close)
    return end if following < 0 else min(end, following)


def _int64(digits: str) -> int:
    """Larger numbers cannot be stored, and few tools accept them."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError("a whole number has more than 64 bits; write it as a string")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_int64)
