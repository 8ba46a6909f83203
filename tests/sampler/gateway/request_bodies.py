"""Bodies of requests in the four dialects, with every kind of object that a reader looks into, and changed versions of them."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
Path = tuple[str | int, ...]
CHAT: dict[str, Any] = {
    "model": "main",
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "name": "ann", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I add.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "max_tokens": 20,
    "temperature": 1.0,
    "stop": ["END"],
    "logprobs": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}},
}
RESPONSES: dict[str, Any] = {
    "model": "main",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "I add."}], "content": []},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "add", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ],
    "tools": [
        {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "sub", "parameters": SCHEMA}]},
    ],
    "text": {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}},
    "max_output_tokens": 20,
    "temperature": 1.0,
    "include": ["message.output_text.logprobs"],
}
ANTHROPIC: dict[str, Any] = {
    "model": "main",
    "max_tokens": 20,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I add.", "signature": ""},
                {"type": "text", "text": "So."},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "3"}],
                    "is_error": False,
                }
            ],
        },
    ],
    "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
    "thinking": {"type": "enabled"},
    "stop_sequences": ["END"],
    "temperature": 1.0,
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
GOOGLE: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I add.", "thought": True},
                {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "add", "response": {"result": "3"}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "add", "description": "Adds.", "parameters": SCHEMA}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {
        "maxOutputTokens": 20,
        "temperature": 1.0,
        "stopSequences": ["END"],
        "responseLogprobs": True,
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
        "thinkingConfig": {"includeThoughts": True},
    },
}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/v1beta/models/main:generateContent": GOOGLE,
}
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
_URL = f"data:image/png;base64,{_PNG}"
IMAGE_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "main",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": _URL}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": _URL}}]},
        ],
    },
    "/v1/responses": {
        "model": "main",
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": _URL, "detail": "auto"}]},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": _URL}]},
        ],
    },
    "/v1/messages": {
        "model": "main",
        "max_tokens": 20,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}}
                        ],
                    },
                ],
            },
        ],
    },
    "/v1beta/models/main:generateContent": {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"inlineData": {"mimeType": "image/png", "data": _PNG}},
                    {
                        "functionResponse": {
                            "name": "add",
                            "response": {"result": "3"},
                            "parts": [{"inlineData": {"mimeType": "image/png", "data": _PNG}}],
                        }
                    },
                ],
            },
        ],
    },
}
OPAQUE = ("parameters", "schema", "input_schema", "responseJsonSchema", "input", "args", "response")  # any names inside


def objects_of(body: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of the objects that a reader looks into."""
    if isinstance(body, Mapping):
        yield path
        for name, value in body.items():
            if not (name in OPAQUE and isinstance(value, Mapping)):
                yield from objects_of(value, (*path, name))
    elif isinstance(body, list):
        for at, value in enumerate(body):
            yield from objects_of(value, (*path, at))


def places_of(body: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of all values."""
    yield path
    members = body.items() if isinstance(body, Mapping) else enumerate(body) if isinstance(body, list) else ()
    for name, value in members:
        yield from places_of(value, (*path, name))


def at(body: Any, path: Path) -> Any:
    for name in path:
        body = body[name]
    return body


def changed(body: Any, path: Path, value: Any) -> Any:
    """A copy with another value at the path."""
    if not path:
        return value
    twin = copy.deepcopy(body)
    at(twin, path[:-1])[path[-1]] = value
    return twin


def without(body: Any, path: Path) -> Any:
    twin = copy.deepcopy(body)
    del at(twin, path[:-1])[path[-1]]
    return twin


def nested(levels: int) -> Any:
    value: Any = {}
    for number in range(levels):
        value = [value] if number % 2 else {"a": value}
    return value


TEXTS = st.sampled_from(
    ["", "\0", "half \ud83d", "{", "[" * 2000, '{"a": "\\ud83d"}', '{"\\u0000": 1}', "null", "none"]
)
NUMBERS = st.sampled_from([0, -1, 1, 1.5, 2**63, 2**200, -(2**63) - 1, 1e308, float("inf"), float("nan")])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | TEXTS | NUMBERS
ANYTHING = st.recursive(
    PLAIN | st.sampled_from([nested(20), nested(70), nested(300), {}, []]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "name", "role", "content", "\0", "x", "function"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@st.composite
def mutants(draw: st.DrawFn, body: Any) -> Any:
    """One to three changes: another value, a member less, a member more, a member twice."""
    for _ in range(draw(st.integers(1, 3))):
        places = list(places_of(body))
        path = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(["value", "value", "without", "more"]))
        here = at(body, path)
        if kind == "without" and path:
            body = without(body, path)
        elif kind == "more" and isinstance(here, dict):
            body = changed(body, (*path, draw(st.text(max_size=4) | st.just("role"))), draw(ANYTHING))
        elif kind == "more" and isinstance(here, list) and here:
            body = changed(body, path, [*here, copy.deepcopy(draw(st.sampled_from(here)))])
        else:
            body = changed(body, path, draw(ANYTHING))
    return body
