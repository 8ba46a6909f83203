"""Answers as Anthropic's Messages (`POST /v1/messages`): a pure translation, like `chat_completions`."""

from collections.abc import Iterator, Mapping
from typing import Any

from sampler.gateway.exchange import ChatReply, ChatRequest, Event, GatewayError, Problem, ReplyHead, ReplyWriter

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


def messages_reply(reply: ChatReply, request: ChatRequest) -> dict[str, Any]:
    usage = {**_input_usage(reply), "output_tokens": reply.completion_tokens}
    ended = {"stop_reason": _stop(reply), "stop_sequence": reply.stopped_by}
    return {**_head(reply), **ended, "content": _blocks(reply, request), "usage": usage}


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
        delta = {"stop_reason": _stop(reply), "stop_sequence": reply.stopped_by}
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
    blocks: list[dict[str, Any]] = []
    if reply.reasoning and request.shows_reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.content or not reply.calls:
        blocks.append({"type": "text", "text": reply.content})
    calls = [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in reply.calls]
    return [*blocks, *calls]


def _head(reply: ReplyHead) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_sequence": None,
    }


def _stop(reply: ChatReply) -> str:
    if reply.is_cut:
        return "max_tokens"
    return "tool_use" if reply.calls else "end_turn" if reply.stopped_by is None else "stop_sequence"


def _input_usage(reply: ReplyHead) -> dict[str, int]:
    cached = reply.cached_tokens
    return {
        "input_tokens": reply.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }
