"""OpenAI's Chat Completions (`POST /v1/chat/completions`): a pure translation of bodies, stream events and errors.

Taken: text, tools, parallel tool calls, streams, usage. Refused with 400: images and other parts than text, `n` above 1,
the deprecated `functions`. A reply's reasoning is `reasoning_content`, as SGLang and vLLM name it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from sampler.gateway.bodies import text_of_parts, tool_schema, validated
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    Event,
    GatewayError,
    Problem,
    ReceivedMessage,
    RepliedCall,
    ReplyHead,
    ReplyWriter,
    arguments_of,
    not_neutral,
)
from shared.names import ROLES

ROLE_NAMES = {"developer": "system"}
_NEUTRAL: Mapping[str, list[Any]] = {
    "temperature": [],
    "top_p": [1],
    "top_k": [-1],
    "min_p": [0],
    "frequency_penalty": [0],
    "presence_penalty": [0],
    "repetition_penalty": [1],
    "logit_bias": [{}],
    "response_format": [{"type": "text"}],
    "tool_choice": ["auto"],
    "parallel_tool_calls": [True],
    "stop": [[], ""],
}
_ERRORS: Mapping[Problem, tuple[int, str, str | None]] = {  # status, type, code
    Problem.INVALID: (400, "invalid_request_error", None),
    Problem.NO_KEY: (401, "invalid_request_error", "invalid_api_key"),
    Problem.NO_MODEL: (404, "invalid_request_error", "model_not_found"),
    Problem.NOT_FOUND: (404, "invalid_request_error", None),
    Problem.TOO_LARGE: (413, "invalid_request_error", None),
    Problem.TOO_LONG: (400, "invalid_request_error", "context_length_exceeded"),
    Problem.TOO_MANY: (429, "rate_limit_error", "rate_limit_exceeded"),
    Problem.LIMIT: (403, "insufficient_quota", "turn_limit"),
    Problem.FAILED: (500, "server_error", None),
}


class _Function(BaseModel):
    name: str
    arguments: Any = "{}"


class _Call(BaseModel):
    id: str = ""
    function: _Function


class _Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class _Tool(BaseModel):
    type: str = "function"
    function: dict[str, Any]


class _StreamOptions(BaseModel):
    include_usage: bool | None = None


class _ChatBody(BaseModel, extra="allow"):
    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = Field(None, gt=0)
    max_completion_tokens: int | None = Field(None, gt=0)
    n: int | None = None
    functions: Any = None


def read_chat(body: Any) -> ChatRequest:
    """Raises GatewayError."""
    chat = validated(_ChatBody, body)
    if chat.n not in (None, 1) or chat.functions:
        raise GatewayError(Problem.INVALID, "n above 1 and functions are not supported; send n=1, and tools")
    return ChatRequest(
        model=chat.model,
        messages=[_message(message, f"messages[{at}]") for at, message in enumerate(chat.messages)],
        tools=[tool_schema(**_named(tool.function, f"tools[{at}]")) for at, tool in enumerate(chat.tools or ())],
        max_tokens=chat.max_completion_tokens or chat.max_tokens,
        stream=bool(chat.stream),
        stream_usage=bool(chat.stream_options and chat.stream_options.include_usage),
        sampling=not_neutral(chat.model_extra or {}, _NEUTRAL),
    )


def _named(function: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(function.get("name"), str):
        raise GatewayError(Problem.INVALID, f"{where}.function has no name")
    return function


def _message(message: _Message, where: str) -> ReceivedMessage:
    role = ROLE_NAMES.get(message.role, message.role)
    if role not in ROLES:
        raise GatewayError(
            Problem.INVALID, f"{where}.role is {message.role!r}; expected one of developer, {', '.join(ROLES)}"
        )
    found: ReceivedMessage = {"role": role, "content": text_of_parts(message.content, f"{where}.content")}
    if role == "tool":
        found["tool_call_id"] = message.tool_call_id or ""
    if message.name:
        found["name"] = message.name
    if role == "assistant" and message.reasoning_content:
        found["reasoning_content"] = message.reasoning_content
    if role == "assistant" and message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": arguments_of(f"{where}.tool_calls", call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return found


# ---------------------------------------------------------------------- answers


def chat_reply(reply: ChatReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_call(call) for call in reply.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": None}
    return {**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


class ChatWriter(ReplyWriter):
    """The same reply as chunks; the last is the text `[DONE]`."""

    def begin(self, head: ReplyHead) -> Iterator[Event]:
        self._head = _head(head, "chat.completion.chunk")
        yield self._chunk({"role": "assistant", "content": ""})

    def more_reasoning(self, text: str) -> Iterator[Event]:
        yield self._chunk({"reasoning_content": text})

    def more_content(self, text: str) -> Iterator[Event]:
        yield self._chunk({"content": text})

    def end(self, reply: ChatReply) -> Iterator[Event]:
        for index, call in enumerate(reply.calls):
            function = {"name": call.name, "arguments": ""}
            yield self._chunk(
                {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
            )
            yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": call.as_json}}]})
        yield self._chunk({}, _finish(reply))
        if self.request.stream_usage:
            yield None, {**self._head, "choices": [], "usage": _usage(reply)}
        yield None, "[DONE]"

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return None, {**self._head, "choices": [choice]}


def chat_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    status, kind, code = _ERRORS[error.problem]
    return status, {"error": {"message": error.message, "type": kind, "param": None, "code": code}}


def _head(reply: ReplyHead, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}


def _call(call: RepliedCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.as_json}}


def _finish(reply: ChatReply) -> str:
    return "length" if reply.is_cut else "tool_calls" if reply.calls else "stop"


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
