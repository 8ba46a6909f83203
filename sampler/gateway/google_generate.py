"""Google's `POST /v1/models/MODEL:generateContent`, `:streamGenerateContent?alt=sse` and `:countTokens`: a pure translation.

Taken: systemInstruction, contents (text, thought, functionCall, functionResponse), functionDeclarations, parallel calls, streams,
usageMetadata. Names are taken as camelCase and as snake_case. A functionResponse without an id answers the first open call
with its name. Refused with 400: inline data and files, more than one candidate. Tools that Google's own servers run are left
out, and counted like parameters.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel, to_snake

from sampler.gateway.bodies import left_out, tool_schema, validated
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    Event,
    GatewayError,
    Problem,
    ReceivedMessage,
    ReplyHead,
    ReplyWriter,
    not_neutral,
)

_NEUTRAL: Mapping[str, list[Any]] = {
    "temperature": [],
    "topP": [1],
    "topK": [],
    "frequencyPenalty": [0],
    "presencePenalty": [0],
    "stopSequences": [[]],
    "responseMimeType": ["text/plain"],
    "responseSchema": [],
    "responseJsonSchema": [],
}
_ERRORS: Mapping[Problem, tuple[int, str]] = {
    Problem.INVALID: (400, "INVALID_ARGUMENT"),
    Problem.NO_KEY: (401, "UNAUTHENTICATED"),
    Problem.NO_MODEL: (404, "NOT_FOUND"),
    Problem.NOT_FOUND: (404, "NOT_FOUND"),
    Problem.TOO_LARGE: (413, "INVALID_ARGUMENT"),
    Problem.TOO_LONG: (400, "INVALID_ARGUMENT"),
    Problem.TOO_MANY: (429, "RESOURCE_EXHAUSTED"),
    Problem.LIMIT: (403, "PERMISSION_DENIED"),
    Problem.FAILED: (500, "INTERNAL"),
}
_ANSWERS = ("result", "output")  # keys under which the SDKs put a function's plain answer


class _Google(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class _FunctionCall(_Google):
    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class _FunctionResponse(_Google):
    name: str
    response: dict[str, Any] | None = None
    id: str | None = None


class _Part(_Google, extra="allow"):
    text: str | None = None
    thought: bool | None = None
    function_call: _FunctionCall | None = None
    function_response: _FunctionResponse | None = None


class _Content(_Google):
    role: str | None = None
    parts: list[_Part] = []


class _Declaration(_Google):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class _GoogleTool(_Google, extra="allow"):
    function_declarations: list[_Declaration] | None = None


class _ToolConfig(_Google):
    function_calling_config: dict[str, Any] | None = None


class _Thinking(_Google):
    include_thoughts: bool | None = None


class _Generation(_Google, extra="allow"):
    max_output_tokens: int | None = Field(None, gt=0)
    candidate_count: int | None = None
    thinking_config: _Thinking | None = None


class _GenerateBody(_Google):
    contents: list[_Content] = Field(min_length=1)
    system_instruction: _Content | None = None
    tools: list[_GoogleTool] | None = None
    tool_config: _ToolConfig | None = None
    generation_config: _Generation | None = None


def read_google(body: Any, model: str, *, stream: bool) -> ChatRequest:
    """Raises GatewayError."""
    given = validated(_GenerateBody, body)
    generation = given.generation_config or _Generation()
    if generation.candidate_count not in (None, 1):
        raise GatewayError(Problem.INVALID, "candidateCount above 1 is not supported; send 1")
    sampling = not_neutral({to_camel(name): value for name, value in (generation.model_extra or {}).items()}, _NEUTRAL)
    calling = (given.tool_config and given.tool_config.function_calling_config) or {}
    if calling.get("mode") not in (None, "AUTO", "MODE_UNSPECIFIED"):
        sampling["toolConfig"] = calling
    sampling |= left_out(to_snake(name) for tool in given.tools or () for name in tool.model_extra or {})
    reader = _Contents()
    return ChatRequest(
        model=model.removeprefix("models/"),
        messages=reader.messages(given),
        tools=[schema for tool in given.tools or () for schema in _tools(tool)],
        max_tokens=generation.max_output_tokens,
        stream=stream,
        shows_reasoning=bool(generation.thinking_config and generation.thinking_config.include_thoughts),
        sampling=sampling,
        failed_calls=frozenset(reader.failed),
    )


def _tools(tool: _GoogleTool) -> Iterator[dict[str, Any]]:
    other = [name for name in tool.model_extra or {} if not left_out([to_snake(name)])]
    if any((tool.model_extra or {})[name] for name in other):
        raise GatewayError(Problem.INVALID, f"tools: {', '.join(other)}: only functionDeclarations")
    for one in tool.function_declarations or ():
        schema = one.parameters_json_schema or (one.parameters and _json_schema(one.parameters))
        yield tool_schema(one.name, one.description, schema)


def _json_schema(schema: Any) -> Any:
    """Google's types are in capitals (`STRING`)."""
    if isinstance(schema, list):
        return [_json_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in schema.items()
    }


class _Contents:
    """Translates contents to messages. `failed`: ids of calls whose responses are errors."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self._open: list[tuple[str, str]] = []  # id and name of calls without a response
        self._calls = 0

    def messages(self, given: _GenerateBody) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        if given.system_instruction is not None:
            system = "\n".join(_text(part, "systemInstruction.parts") for part in given.system_instruction.parts)
            found.append({"role": "system", "content": system})
        for at, content in enumerate(given.contents):
            if content.role not in (None, "user", "model", "function"):
                raise GatewayError(Problem.INVALID, f"contents[{at}].role is {content.role!r}; expected user or model")
            parts = [(f"contents[{at}].parts[{number}]", part) for number, part in enumerate(content.parts)]
            found += [self._reply(parts)] if content.role == "model" else self._told(parts)
        return found

    def _reply(self, parts: list[tuple[str, _Part]]) -> ReceivedMessage:
        texts, thoughts, calls = [], [], []
        for where, part in parts:
            if part.function_call is not None:
                calls.append(self._call(part.function_call))
            elif part.thought:
                thoughts.append(part.text or "")
            else:
                texts.append(_text(part, where))
        found: ReceivedMessage = {"role": "assistant", "content": "".join(texts)}
        if any(thoughts):
            found["reasoning_content"] = "".join(thoughts)
        if calls:
            found["tool_calls"] = calls
        return found

    def _call(self, call: _FunctionCall) -> dict[str, Any]:
        self._calls += 1
        name = call.id or f"call-{self._calls}"
        self._open.append((name, call.name))
        return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.args or {}}}

    def _told(self, parts: list[tuple[str, _Part]]) -> list[ReceivedMessage]:
        """Responses become messages of tools, in order; the text between them one of the user."""
        found: list[ReceivedMessage] = []
        for where, part in parts:
            if part.function_response is not None:
                found.append(self._result(part.function_response))
            elif found and found[-1]["role"] == "user":
                found[-1]["content"] += "\n" + _text(part, where)
            else:
                found.append({"role": "user", "content": _text(part, where)})
        return found or [{"role": "user", "content": ""}]

    def _result(self, response: _FunctionResponse) -> ReceivedMessage:
        matching = [one for one in self._open if response.id in (None, one[0]) and one[1] == response.name]
        if matching:
            self._open.remove(matching[0])
        name = response.id or (matching[0][0] if matching else "")
        given = response.response or {}
        if "error" in given:
            self.failed.add(name)
        value = next((given[key] for key in _ANSWERS if set(given) == {key}), given)
        content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return {"role": "tool", "name": response.name, "content": content, "tool_call_id": name}


def _text(part: _Part, where: str) -> str:
    if part.text is None:
        kind = next(iter(part.model_extra or {}), "empty")
        raise GatewayError(Problem.INVALID, f"{where} is {kind!r}; only text and functions are supported")
    return part.text


# ---------------------------------------------------------------------- answers


def google_reply(reply: ChatReply, request: ChatRequest) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if reply.reasoning and request.shows_reasoning:
        parts.append({"text": reply.reasoning, "thought": True})
    if reply.content or not reply.calls:
        parts.append({"text": reply.content})
    return _response(reply, [*parts, *_calls(reply)], reply)


class GoogleWriter(ReplyWriter):
    """The same reply in parts, each a response of its own. The last has the reason of the end, and the usage."""

    def begin(self, head: ReplyHead) -> Iterator[Event]:
        self._head = head
        return iter(())

    def more_reasoning(self, text: str) -> Iterator[Event]:
        if self.request.shows_reasoning:
            yield None, _response(self._head, [{"text": text, "thought": True}])

    def more_content(self, text: str) -> Iterator[Event]:
        yield None, _response(self._head, [{"text": text}])

    def end(self, reply: ChatReply) -> Iterator[Event]:
        yield None, _response(reply, _calls(reply) or [{"text": ""}], reply)


def google_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    status, kind = _ERRORS[error.problem]
    return status, {"error": {"code": status, "message": error.message, "status": kind}}


def _calls(reply: ChatReply) -> list[dict[str, Any]]:
    return [{"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}} for call in reply.calls]


def _response(head: ReplyHead, parts: list[dict[str, Any]], reply: ChatReply | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    found: dict[str, Any] = {"candidates": [candidate], "modelVersion": head.model, "responseId": head.id}
    if reply is not None:
        candidate["finishReason"] = "MAX_TOKENS" if reply.is_cut else "STOP"
        found["usageMetadata"] = {
            "promptTokenCount": reply.prompt_tokens,
            "cachedContentTokenCount": reply.cached_tokens,
            "candidatesTokenCount": reply.completion_tokens,
            "totalTokenCount": reply.prompt_tokens + reply.completion_tokens,
        }
    return found
