"""The standard sampler: multi-turn episodes with MCP tools.

    question ─▶ [ reply ─▶ tool calls over MCP ─▶ their results ]* ─▶ a reply without a tool call: the answer

A tool that answers with an error, an unknown tool and a call that cannot be parsed are told to the model and are part of the
episode. A tool server that dies or hangs is a failure of the plumbing: the slot is retried.
"""

from collections.abc import Sequence

from sampler.errors import ToolFailure
from sampler.parsers import ParsedReply
from sampler.sampler import AsyncSampler, Message, Turn, make_call_id
from sampler.tools import TokenBorders, ToolLimits, ToolSession
from shared.documents import ToolCallResult
from shared.states import DispatchStatus, Termination


class MCPSampler(AsyncSampler):
    async def run(self) -> Termination:
        config, payload = self.config, self.task.payload
        session = ToolSession(
            self.resources.tool_servers,
            payload.tools,
            ToolLimits(
                call_s=config.tool_timeout_s,
                max_result_tokens=config.max_tool_result_tokens,
                max_result_chars=config.max_tool_result_chars,
                max_raw_chars=config.max_raw_result_chars,
            ),
            self.resources.tool_catalog,
            exclude=[*config.exclude_tools, *payload.exclude_tools],
            borders=TokenBorders(self.resources.template),
        )
        async with session as tools:
            return await self._converse(tools)

    async def _converse(self, tools: ToolSession) -> Termination:
        payload = self.task.payload
        messages = self._opening()
        schemas = tools.list_tools()
        for _ in range(payload.max_turns or self.config.max_turns):
            turn = await self.create_chat_completions(messages, tools=schemas)
            ended = self.ended_by(turn)
            if turn is None or ended is not None:
                return ended or Termination.LENGTH_LIMIT
            if not turn.parsed.tool_calls and not turn.parsed.errors:
                return Termination.ANSWERED
            messages = await self._call_tools(tools, turn)
        return Termination.TURNS_LIMIT

    def _opening(self) -> list[Message]:
        payload = self.task.payload
        system = payload.system or self.config.system_prompt
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*opening, {"role": "user", "content": payload.query}]

    async def _call_tools(self, tools: ToolSession, turn: Turn) -> list[Message]:
        """Call them one after the other (they may depend on each other's effects); returns the messages for the model."""
        results: list[ToolCallResult] = []
        for call in turn.parsed.tool_calls:
            try:
                result = await tools.call(call.name, call.arguments)
            except ToolFailure:
                self.add_tool_calls(results, status=DispatchStatus.TOOL_FAILED)
                raise
            results.append(
                ToolCallResult(
                    name=call.name,
                    arguments=dict(call.arguments),
                    result=result.text,
                    is_error=result.is_error,
                    duration_s=round(result.duration_s, 4),
                    cut_chars=result.cut_chars,
                    raw=result.raw,
                    retries=result.retries,
                )
            )
        self.add_tool_calls(results)
        return [*_tool_messages(turn.parsed, results), *_error_messages(turn)]


def _tool_messages(parsed: ParsedReply, results: Sequence[ToolCallResult]) -> list[Message]:
    return [
        {"role": "tool", "name": result.name, "tool_call_id": call.id, "content": result.result}
        for call, result in zip(parsed.tool_calls, results, strict=True)
    ]


def _error_messages(turn: Turn) -> list[Message]:
    return [
        {"role": "tool", "name": "error", "tool_call_id": make_call_id("e", index), "content": error}
        for index, error in enumerate(turn.parsed.errors)
    ]
