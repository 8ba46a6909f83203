"""The standard sampler: multi-turn episodes with MCP tools.

    question ─▶ [ reply ─▶ tool calls over MCP ─▶ their results ]* ─▶ a reply without a tool call: the answer
                                                    └─▶ summarized by the browse agent, if configured and they are long
                  ▲ a context policy may rewrite the history: docs/train/context.md

A tool's error result, an unknown tool and an unparsable call are reported to the model and are part of the episode. A tool server
that crashes or hangs is an infrastructure failure: the slot is retried. The same holds for a summary that no model wrote. While a
tool server is unavailable, slots wait without counting a failure.
"""

from collections.abc import Sequence
from typing import ClassVar

from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.core.episode.tools import called, tool_session
from sampler.core.errors import AgentFailed, ToolFailure
from sampler.core.kinds.conversation import Conversation
from sampler.core.kinds.forked import forked_conversation
from sampler.core.parsers import ParsedReply, ToolCall
from sampler.core.rendering.reply_message import Message, make_call_id
from sampler.core.tools import ToolResult, ToolSession
from shared.documents import ToolCallResult
from shared.documents.agent_use import AgentUse
from shared.documents.states import DispatchStatus, Termination

MAX_SHOWN_PURPOSE_CHARS = 200


class MCPSampler(AsyncSampler):
    uses_tools: ClassVar[bool] = True

    async def run(self) -> Termination:
        async with tool_session(self) as tools:
            return await self._converse(tools)

    @classmethod
    def require_forks(cls) -> None:
        if (cls.run, cls._converse) != (MCPSampler.run, MCPSampler._converse):
            super().require_forks()

    async def _converse(self, tools: ToolSession) -> Termination:
        browse, most = self.resources.agents.browse, self.task.payload.max_turns or self.config.budget.max_turns
        if self.task.payload.fork is None:
            talk, taken = Conversation(self, self.opening_messages(), tools.list_tools(), browse), 0
        else:
            talk, taken = await forked_conversation(self, self.task.payload.fork, tools)
        for _ in range(taken, max(most, taken + 1)):
            turn = await talk.next_turn()
            if turn is None:
                continue
            if isinstance(turn, Termination):
                return turn
            if not turn.parsed.tool_calls and not turn.parsed.errors:
                return Termination.ANSWERED
            talk.answer(turn, await self._call_tools(tools, turn))
        return Termination.TURNS_LIMIT

    async def _call_tools(self, tools: ToolSession, turn: Turn) -> list[Message]:
        """Run the calls in order (they may depend on each other's effects). Returns the messages for the model."""
        results: list[ToolCallResult] = []
        for call in turn.parsed.tool_calls:
            try:
                result = await tools.call(call.name, call.arguments)
            except ToolFailure:
                self.add_tool_calls(results, status=DispatchStatus.TOOL_FAILED, turn=turn)
                raise
            try:
                result, summarized_by = await self._summarized(tools, call, result)
            except AgentFailed as exc:
                results.append(_document(call, result, exc.use))
                self.add_tool_calls(results, status=DispatchStatus.TOOL_FAILED, turn=turn)
                raise
            results.append(_document(call, result, summarized_by))
        self.add_tool_calls(results, turn=turn)
        return [*_tool_messages(turn.parsed, results), *error_messages(turn)]

    async def _summarized(
        self, tools: ToolSession, call: ToolCall, result: ToolResult
    ) -> tuple[ToolResult, AgentUse | None]:
        """The summary that the model reads and the agent that wrote it. None if the model reads the result itself."""
        agent = self.resources.agents.browse
        if agent is None or result.is_error:
            return result, None
        purpose = await agent.purpose_for(call.name, call.arguments.get("purpose"), result.whole)
        if purpose is None:
            return result, None
        summary = await agent.summary_of(result.whole, purpose)
        head = f"[summary of {len(result.whole)} characters; purpose: {purpose[:MAX_SHOWN_PURPOSE_CHARS]}]"
        return tools.with_summary(result, f"{head}\n{summary.text}"), summary.use


def _document(call: ToolCall, result: ToolResult, summarized_by: AgentUse | None) -> ToolCallResult:
    return called(call.name, call.arguments, result, summarized_by, call.id)


def _tool_messages(parsed: ParsedReply, results: Sequence[ToolCallResult]) -> list[Message]:
    return [
        {"role": "tool", "name": result.name, "tool_call_id": call.id, "content": result.blocks or result.result}
        for call, result in zip(parsed.tool_calls, results, strict=True)
    ]


def error_messages(turn: Turn) -> list[Message]:
    return [
        {"role": "tool", "name": "error", "tool_call_id": make_call_id("e", index), "content": error}
        for index, error in enumerate(turn.parsed.errors)
    ]
