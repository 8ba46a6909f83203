"""Reads the agent's own tool calls and results out of its messages, and records them as those of our own tools are.

A result belongs to the reply that made the call, by the call's id; it is recorded when the first request brings it. Its
duration is the time from the reply to that request: the tool's own time, and the agent's around it. Whether it is an error is
known in dialects that say so (Anthropic's `is_error`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sampler.core.parsers import ToolCall
from sampler.gateway.exchange import ChatRequest
from shared.documents import DispatchedSamplingTask, ToolCallResult
from shared.documents.content import text_of

if TYPE_CHECKING:
    from sampler.core.episode.sampler import AsyncSampler, Turn


@dataclass(slots=True)
class _Asked:
    turn: "Turn"
    at: float
    calls: dict[str, ToolCall]
    results: dict[str, ToolCallResult] = field(default_factory=dict)


class CalledTools:
    def __init__(self, sampler: "AsyncSampler") -> None:
        self._sampler = sampler
        self._open: dict[str, _Asked] = {}  # by call id, until it has a result
        self.late = 0  # results that came after the documents of their turn were written

    def note_calls(self, turn: "Turn") -> None:
        calls = {call.id: call for call in turn.parsed.tool_calls}
        pending = _Asked(turn, time.monotonic(), calls)
        self._open.update(dict.fromkeys(calls, pending))

    def resume(self, dispatch: DispatchedSamplingTask, turn: "Turn") -> None:
        """Of a reply that is read from the database: calls without results may still be given them."""
        if dispatch.finished_at is not None:
            return
        self.note_calls(turn)
        for result in dispatch.tool_calls:
            if result.id is not None and (pending := self._open.pop(result.id, None)) is not None:
                pending.results[result.id] = result

    def answered_by(self, request: ChatRequest) -> None:
        """Record the results that this request brings, before its thread asks again."""
        changed: dict[str, _Asked] = {}
        for message in request.messages:
            call_id = message.get("tool_call_id", "")
            pending = self._open.pop(call_id, None) if message["role"] == "tool" else None
            if pending is not None:
                pending.results[call_id] = self._result(pending, call_id, message, request)
                changed[pending.turn.dispatch_id] = pending
        for pending in changed.values():
            in_order = [pending.results[call_id] for call_id in pending.calls if call_id in pending.results]
            try:
                self._sampler.add_tool_calls(in_order, turn=pending.turn)
            except ValueError:  # another request has continued this turn's thread already
                self.late += len(in_order)

    def _result(
        self, pending: _Asked, call_id: str, message: Mapping[str, Any], request: ChatRequest
    ) -> ToolCallResult:
        call = pending.calls[call_id]
        return ToolCallResult(
            id=call_id,
            name=call.name,
            arguments=dict(call.arguments),
            result=text_of(message["content"], "\n"),
            blocks=message["content"] if isinstance(message["content"], list) else [],
            is_error=call_id in request.failed_calls,
            duration_s=round(time.monotonic() - pending.at, 4),
        )
