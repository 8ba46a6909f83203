"""The 400s of this engine, in SGLang's words and five shapes, and the parsing of a request's JSON.

{"error": {"message"}}                 a bad value, an input too long            `bad_value`
{"error": "text"}                      a bad type or unknown sampling parameter  `bad_type`
{"object": "error", "message", …}      malformed JSON, a missing or wrong field  `bad_field`
{"success": false, "message"}          weights                                   `bad_weights`
{"success": false, "error_message"}    adapters                                  `bad_adapter`
"""

from __future__ import annotations

import json
from typing import Any


class ApiError(Exception):
    def __init__(self, body: dict[str, Any], status: int = 400) -> None:
        super().__init__(str(body))
        self.body, self.status = body, status


def bad_value(message: str) -> ApiError:
    return ApiError({"error": {"message": message}})


def bad_type(message: str) -> ApiError:
    return ApiError({"error": message})


def bad_field(message: str) -> ApiError:
    text = "1 validation error:\n  " + message
    return ApiError({"object": "error", "message": text, "type": "Bad Request", "param": None, "code": 400})


def bad_weights(message: str) -> ApiError:
    return ApiError({"success": False, "message": message, "num_paused_requests": 0})


def bad_adapter(message: str) -> ApiError:
    return ApiError({"success": False, "error_message": message})


def parse_json(raw: bytes, content_type: str) -> dict[str, Any]:
    if not raw:
        raise bad_field("{'type': 'missing', 'loc': ('body',), 'msg': 'Field required', 'input': None}")
    if "json" not in content_type:
        raise bad_field(f"{{'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary', "
                        f"'input': {raw[:200]!r}}}; send Content-Type: application/json")  # fmt: skip
    try:
        body = json.loads(raw)
    except ValueError as error:
        where = getattr(error, "pos", 0)
        reason = {"error": getattr(error, "msg", str(error))}
        raise bad_field(f"{{'type': 'json_invalid', 'loc': ('body', {where}), 'msg': 'JSON decode error', "
                        f"'input': {{}}, 'ctx': {reason}}}") from error  # fmt: skip
    if not isinstance(body, dict):
        raise bad_field(f"{{'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary', "
                        f"'input': {str(body)[:200]}}}")  # fmt: skip
    return body


def field(body: dict[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """A typed field of a request; the default `...` means required."""
    if name not in body or (body[name] is None and default is not ...):
        if default is ...:
            shown = str(body)[:200]
            raise bad_field(f"{{'type': 'missing', 'loc': ('body', '{name}'), 'msg': 'Field required', "
                            f"'input': {shown}}}")  # fmt: skip
        return default
    value = body[name]
    if not isinstance(value, kind):
        words = {str: "string", bool: "boolean", int: "int", list: "list", dict: "dictionary"}[kind]
        raise bad_field(f"{{'type': '{words}_type', 'loc': ('body', '{name}'), 'msg': 'Input should be a valid "
                        f"{words}', 'input': {value!r}}}")  # fmt: skip
    return value
