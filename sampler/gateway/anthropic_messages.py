"""Anthropic's Messages (`POST /v1/messages`, `POST /v1/messages/count_tokens`): a pure translation, like `chat_completions`.

Taken: system as text or blocks, text, tool_use, tool_result (with `is_error`), thinking, parallel tool calls, streams, usage.
Refused with 400: images, documents, and tools without a schema. Tools that Anthropic's own servers run (`web_search_…`) are left
out, and counted like parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from sampler.gateway.bodies import left_out, text_of_parts, tool_schema, validated
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
    "top_p": [1],
    "top_k": [],
    "tool_choice": [{"type": "auto"}],
    "stop_sequences": [[]],
    "output_format": [],
}
_ERRORS: Mapping[Problem, tuple[int, str]] = {
    Problem.INVALID: (400, "invalid_request_error"),
    Problem.NO_KEY: (401, "authentication_error"),
    Problem.NO_MODEL: (404, "not_found_error"),
    Problem.NOT_FOUND: (404, "not_found_error"),
    Problem.TOO_LARGE: (413, "request_too_large"),
    Problem.TOO_LONG: (400, "invalid_request_error"),
    Problem.TOO_MANY: (429, "rate_limit_error"),
    Problem.LIMIT: (403, "permission_error"),
    Problem.FAILED: (500, "api_error"),
}
_HIDDEN = ("thinking", "redacted_thinking")


class _AnthropicMessage(BaseModel):
    role: str
    content: str | list[dict[str, Any]]


class _AnthropicTool(BaseModel):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _MessagesBody(BaseModel, extra="allow"):
    model: str
    messages: list[_AnthropicMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, gt=0)
    system: str | list[dict[str, Any]] | None = None
    tools: list[_AnthropicTool] | None = None
    thinking: dict[str, Any] | None = None
    stream: bool | None = None


def read_messages(body: Any, *, counting: bool = False) -> ChatRequest:
    """`counting`: of `count_tokens`, which needs no `max_tokens`. Raises GatewayError."""
    given = validated(_MessagesBody, body)
    if given.max_tokens is None and not counting:
        raise GatewayError(Problem.INVALID, "max_tokens: Field required")
    system = text_of_parts(given.system, "system")
    messages: list[ReceivedMessage] = [{"role": "system", "content": system}] if system else []
    failed: set[str] = set()
    for at, message in enumerate(given.messages):
        messages += _messages(message, f"messages.{at}", failed)
    return ChatRequest(
        model=given.model,
        messages=messages,
        tools=[_tool(tool) for tool in given.tools or () if not left_out([tool.type])],
        max_tokens=given.max_tokens,
        stream=bool(given.stream),
        shows_reasoning=(given.thinking or {}).get("type") in ("enabled", "adaptive"),
        sampling=not_neutral(given.model_extra or {}, _NEUTRAL) | left_out(tool.type for tool in given.tools or ()),
        failed_calls=frozenset(failed),
    )


def _tool(tool: _AnthropicTool) -> dict[str, Any]:
    if tool.type not in (None, "custom") or tool.input_schema is None:
        raise GatewayError(Problem.INVALID, f"tool {tool.name!r} of type {tool.type!r}: only the client's own tools")
    return tool_schema(tool.name, tool.description, tool.input_schema)


def _messages(message: _AnthropicMessage, where: str, failed: set[str]) -> list[ReceivedMessage]:
    if message.role not in ("user", "assistant", "system"):
        raise GatewayError(Problem.INVALID, f"{where}.role is {message.role!r}; expected user or assistant")
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    blocks = [(f"{where}.content.{at}", block) for at, block in enumerate(message.content)]
    return [_assistant(blocks)] if message.role == "assistant" else _told(message.role, blocks, failed)


def _assistant(blocks: list[tuple[str, dict[str, Any]]]) -> ReceivedMessage:
    texts, calls, thoughts = [], [], []
    for where, block in blocks:
        if block.get("type") == "tool_use":
            function = {"name": str(block.get("name")), "arguments": block.get("input") or {}}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif block.get("type") in _HIDDEN:
            thoughts.append(str(block.get("thinking") or ""))
        else:
            texts.append(text_of_parts([block], where))
    found: ReceivedMessage = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        found["reasoning_content"] = "\n".join(thoughts)
    if calls:
        found["tool_calls"] = calls
    return found


def _told(role: str, blocks: list[tuple[str, dict[str, Any]]], failed: set[str]) -> list[ReceivedMessage]:
    """Results become messages of tools, in order; the text between them one of the user."""
    found: list[ReceivedMessage] = []
    texts: list[str] = []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            texts.append(text_of_parts([block], where))
            continue
        if texts:
            found.append({"role": role, "content": "\n".join(texts)})
            texts = []
        call = str(block.get("tool_use_id", ""))
        if block.get("is_error"):
            failed.add(call)
        content = text_of_parts(block.get("content"), f"{where}.content")
        found.append({"role": "tool", "content": content, "tool_call_id": call})
    return [*found, {"role": role, "content": "\n".join(texts)}] if texts or not found else found


# ---------------------------------------------------------------------- answers


def messages_reply(reply: ChatReply, request: ChatRequest) -> dict[str, Any]:
    usage = {**_input_usage(reply), "output_tokens": reply.completion_tokens}
    return {**_head(reply), "content": _blocks(reply, request), "stop_reason": _stop(reply), "usage": usage}


class MessagesWriter(ReplyWriter):
    """The same reply as events. The name of an event is its `type`. Blocks come one after the other, and a reply has one."""

    _open: str | None = None  # the type of the block that is being written
    _blocks = 0

    def begin(self, head: ReplyHead) -> Iterator[Event]:
        usage = {**_input_usage(head), "output_tokens": 1}
        yield _event("message_start", message={**_head(head), "content": [], "stop_reason": None, "usage": usage})

    def more_reasoning(self, text: str) -> Iterator[Event]:
        if self.request.shows_reasoning:
            yield from self._in_block({"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def more_content(self, text: str) -> Iterator[Event]:
        yield from self._in_block({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def end(self, reply: ChatReply) -> Iterator[Event]:
        if not reply.content and not reply.calls:
            yield from self._in_block({"type": "text", "text": ""})
        for call in reply.calls:
            yield from self._closed()
            yield from self._in_block({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": call.as_json})
        yield from self._closed()
        delta = {"stop_reason": _stop(reply), "stop_sequence": None}
        usage = {**_input_usage(reply), "output_tokens": reply.completion_tokens}
        yield _event("message_delta", delta=delta, usage=usage)
        yield _event("message_stop")

    def _in_block(self, block: dict[str, Any]) -> Iterator[Event]:
        if self._open == block["type"]:
            return
        yield from self._closed()
        self._open = block["type"]
        yield _event("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> Event:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _closed(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._blocks)
            self._blocks += 1


def messages_error(error: GatewayError) -> tuple[int, dict[str, Any]]:
    status, kind = _ERRORS[error.problem]
    return status, {"type": "error", "error": {"type": kind, "message": error.message}}


def _event(kind: str, **values: Any) -> tuple[str, dict[str, Any]]:
    return kind, {"type": kind, **values}


def _blocks(reply: ChatReply, request: ChatRequest) -> list[dict[str, Any]]:
    """A reply always has a block: clients read the first one."""
    found: list[dict[str, Any]] = []
    if reply.reasoning and request.shows_reasoning:
        found.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.content or not reply.calls:
        found.append({"type": "text", "text": reply.content})
    calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in reply.calls]
    return [*found, *calls]


def _head(reply: ReplyHead) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_sequence": None,
    }


def _stop(reply: ChatReply) -> str:
    return "max_tokens" if reply.is_cut else "tool_use" if reply.calls else "end_turn"


def _input_usage(reply: ReplyHead) -> dict[str, int]:
    cached = reply.cached_tokens
    return {
        "input_tokens": reply.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }
