"""Answers as OpenAI's Chat Completions (`POST /v1/chat/completions`): a pure translation of replies, stream events and errors.

A reply's reasoning is `reasoning_content`, as SGLang and vLLM name it. Log-probs are those of all sampled tokens of the reply,
with reasoning and calls, as they were sampled.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sampler.gateway.exchange import (
    ChatReply,
    Event,
    GatewayError,
    Problem,
    RepliedCall,
    ReplyHead,
    ReplyWriter,
    SampledToken,
)

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


def chat_reply(reply: ChatReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_call(call) for call in reply.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": _logprobs(reply)}
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
        yield self._chunk({}, _finish(reply), _logprobs(reply))
        if self.request.stream_usage:
            yield None, {**self._head, "choices": [], "usage": _usage(reply)}
        yield None, "[DONE]"

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
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


def _logprobs(reply: ChatReply) -> dict[str, Any] | None:
    if reply.tokens is None:
        return None
    return {"content": [token_logprob(token) for token in reply.tokens], "refusal": None}


def token_logprob(token: SampledToken) -> dict[str, Any]:
    """`top_logprobs` is empty: of the other tokens nothing is known."""
    return {"token": token.text, "logprob": token.logprob, "bytes": token.as_bytes, "top_logprobs": []}


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
