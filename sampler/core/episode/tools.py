"""The tools of one episode for samplers that call them: a session, and its calls as the documents have them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tools import TokenOffsets, ToolLimits, ToolResult, ToolSession
from shared.documents import ToolCallResult
from shared.documents.agent_use import AgentUse

MAX_RESTARTS = 3  # of a tool server whose process an episode's own calls ended, in that episode
ACT = "tool_ended"  # among `EpisodeLog.acts`


def tool_limits(config: CoreConfig) -> ToolLimits:
    return ToolLimits(
        open_s=config.tools.tool_open_s,
        call_s=config.tools.tool_timeout_s,
        max_result_tokens=config.budget.max_tool_result_tokens,
        max_result_chars=config.budget.max_tool_result_chars,
        max_restarts=MAX_RESTARTS,
    )


@asynccontextmanager
async def tool_session(sampler: AsyncSampler) -> AsyncIterator[ToolSession]:
    """Open during the block; the tools are those that the task names."""
    async with _tool_session(sampler) as session:
        try:
            yield session
        finally:
            if session.own_ends:
                sampler.episode.acts[ACT] = f"{len(session.own_ends)} times, the last: {session.own_ends[-1]}"
                sampler.add_metric("tool_processes_ended", len(session.own_ends))


def _tool_session(sampler: AsyncSampler) -> ToolSession:
    resources, config, payload = sampler.resources, sampler.config, sampler.task.payload
    return ToolSession(
        resources.tool_servers,
        payload.tools,
        tool_limits(config),
        resources.tool_catalog,
        resources.tool_traffic,
        exclude=[*config.prompt.exclude_tools, *payload.exclude_tools],
        episode=quote(f"{config.run}/{sampler.claim.record_id}", safe="/:"),
        offsets=TokenOffsets(resources.template),
        store_image=None if resources.template.images is None else resources.images.store,
    )


def called(
    name: str,
    arguments: Mapping[str, Any],
    result: ToolResult,
    summarized_by: AgentUse | None = None,
    call_id: str | None = None,
) -> ToolCallResult:
    return ToolCallResult(
        id=call_id,
        name=name,
        arguments=dict(arguments),
        result=result.text,
        is_error=result.is_error,
        duration_s=round(result.duration_s, 4),
        cut_chars=result.cut_chars,
        raw=result.raw,
        blocks=result.blocks,
        retries=result.retries,
        summarized_by=summarized_by,
    )
