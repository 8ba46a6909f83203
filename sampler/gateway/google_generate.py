"""Answers as Google's `POST /v1/models/MODEL:generateContent`, `:streamGenerateContent?alt=sse` and `:countTokens`: a pure
translation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    Event,
    GatewayError,
    Problem,
    ReplyHead,
    ReplyWriter,
    SampledToken,
)

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
    response: dict[str, Any] = {"candidates": [candidate], "modelVersion": head.model, "responseId": head.id}
    if reply is not None:
        candidate["finishReason"] = "MAX_TOKENS" if reply.is_cut else "STOP"
        if reply.tokens is not None:
            candidate |= _logprobs(reply.tokens)
        response["usageMetadata"] = {
            "promptTokenCount": reply.prompt_tokens,
            "cachedContentTokenCount": reply.cached_tokens,
            "candidatesTokenCount": reply.completion_tokens,
            "totalTokenCount": reply.prompt_tokens + reply.completion_tokens,
        }
    return response


def _logprobs(tokens: Sequence[SampledToken]) -> dict[str, Any]:
    """Without topCandidates: of the other tokens nothing is known."""
    chosen = [{"token": one.text, "tokenId": one.id, "logProbability": one.logprob} for one in tokens]
    total = sum(one.logprob for one in tokens)
    return {"logprobsResult": {"chosenCandidates": chosen}, "avgLogprobs": total / max(1, len(tokens))}
