"""JSON-RPC messages as the gateway handles them: decoded for routing, and forwarded as the bytes that came.

Promise: a message is forwarded unchanged, byte for byte, unless its id or its tool's name differs between the two sides. So
fields that this code does not know, of later revisions say, survive.
"""

import json
from typing import Any, TypeGuard

from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR
from pydantic_core import from_json

from shared.mcp.messages import mended

Message = dict[str, Any]
RequestId = int | str
SERVER_GONE = -32500  # the tool server ended: among JSON-RPC's reserved codes, of which no tool's answer is one
TIMED_OUT = -32001
MAX_ID_CHARS = 256
# The SDK's words in place of an answer: an event stream broke off before it, and it cannot be read.
_MADE_UP = ((CONNECTION_CLOSED, "SSE stream"), (PARSE_ERROR, "Failed to parse"))
_NO_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")  # in valid JSON, line breaks stand between tokens only


class NotAMessage(ValueError):
    """The bytes are no JSON-RPC message; `code` is JSON-RPC's code for it."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def decoded(body: bytes) -> Message:
    """Raises NotAMessage."""
    try:
        parsed = from_json(mended(body))
    except ValueError as exc:
        raise NotAMessage(PARSE_ERROR, f"the body is not JSON: {str(exc)[:200]}") from exc
    if isinstance(parsed, list):
        raise NotAMessage(
            INVALID_REQUEST, "the body is a list; expected one JSON-RPC message: batches are not supported"
        )
    if not isinstance(parsed, dict) or parsed.get("jsonrpc") != "2.0":
        raise NotAMessage(INVALID_REQUEST, 'expected one JSON-RPC message: an object with "jsonrpc": "2.0"')
    _require_known_shape(parsed)
    return parsed


def _require_known_shape(message: Message) -> None:
    method = message.get("method")
    if "id" in message and not is_id(message["id"]):
        raise NotAMessage(INVALID_REQUEST, f"id is {str(message['id'])[:60]!r}; expected a text or an integer")
    if "method" in message and not isinstance(method, str):
        raise NotAMessage(INVALID_REQUEST, f"method is {type(method).__name__}; expected a text")
    if "method" not in message and not ("id" in message and message.keys() & {"result", "error"}):
        raise NotAMessage(INVALID_REQUEST, "expected a method, or an id with a result or an error")
    if not isinstance(message.get("params", {}), dict):
        raise NotAMessage(INVALID_REQUEST, f"params is {type(message['params']).__name__}; expected an object")


def is_made_up(error: Message) -> bool:
    """Is this the SDK's error in place of an answer over HTTP that did not arrive, or that it cannot read?"""
    code, text = error.get("code"), str(error.get("message"))
    return any(code == known and text.startswith(words) for known, words in _MADE_UP)


def is_id(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_ID_CHARS
    return isinstance(value, int) and not isinstance(value, bool)


def one_line(body: bytes) -> bytes:
    """A valid JSON text as one line, for a server over stdio."""
    if b"\n" in body or b"\r" in body:
        return body.translate(_NO_LINE_BREAKS)
    return body


def encoded(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def request(request_id: RequestId, method: str, params: Message | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else message | {"params": params}


def notification(method: str, params: Message | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0", "method": method}
    return message if params is None else message | {"params": params}


def answer(request_id: RequestId | None, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def refusal(request_id: RequestId | None, code: int, why: str, data: Any = None) -> Message:
    error: Message = {"code": code, "message": why}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def asks_for_input(result: Any) -> TypeGuard[Message]:
    """Is this a result of 2026-07-28 that wants its request repeated, with input of the client?"""
    return isinstance(result, dict) and result.get("resultType") == "input_required"


def progress_token(message: Message) -> RequestId | None:
    """The token under which a request wants progress."""
    meta = message.get("params", {}).get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    return token if is_id(token) else None
