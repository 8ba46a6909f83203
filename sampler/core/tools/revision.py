"""Selects the revision of MCP for a session (`shared.mcp.revision`), and calls tools at it.

With a server that supports both, the handshake is used: its tools keep their state per session. With `auto`, a server that
rejects the handshake is asked for its revisions instead.
"""

import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from mcp import MCPError
from mcp.client.session import DISCOVER_TIMEOUT_SECONDS, ClientSession, MessageHandlerFnT
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    RequestParamsMeta,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from shared.mcp.revision import EPISODE_KEY, HEADER_KEY, Revision

log = logging.getLogger(__name__)

_MAX_ROUNDS = 10
_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


@contextlib.asynccontextmanager
async def session_over(
    transport: AbstractAsyncContextManager[Any],
    revision: Revision,
    read_timeout_s: float,
    on_message: MessageHandlerFnT,
) -> AsyncIterator[ClientSession]:
    """A session that is ready for requests. Raises MCPError, or RuntimeError if the server supports no common revision."""
    async with (
        transport as (read_stream, write_stream),
        ClientSession(
            read_stream, write_stream, read_timeout_seconds=read_timeout_s, message_handler=on_message
        ) as session,
    ):
        await _negotiate(session, revision, read_timeout_s)
        log.debug("tool session speaks %s", session.protocol_version)
        yield session


def has_no_sessions(session: ClientSession) -> bool:
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS


def needs_listing(session: ClientSession, parameters: Mapping[str, Any]) -> bool:
    """Whether a tool's arguments also go into headers. The SDK writes these only for tools that its session has listed."""
    return has_no_sessions(session) and HEADER_KEY in json.dumps(parameters)


async def call_tool(
    session: ClientSession,
    name: str,
    arguments: Mapping[str, Any],
    episode: str,
    timeout_s: float,
    on_progress: ProgressFnT,
) -> CallToolResult:
    """One call. At 2026-07-28 a server may request a repeated call with its state, or user input, which is refused."""
    state: str | None = None
    for _ in range(_MAX_ROUNDS):
        params = CallToolRequestParams(name=name, arguments=dict(arguments), request_state=state)
        if episode and has_no_sessions(session):
            params.meta = cast(RequestParamsMeta, {EPISODE_KEY: episode})
        # Not the session's `call_tool`: it lists the tools again, and validates content that the model reads as text anyway.
        result = await session.send_request(
            CallToolRequest(params=params), _RESULT, timeout_s, progress_callback=on_progress
        )
        if isinstance(result, CallToolResult):
            return result
        if result.input_requests:
            kinds = ", ".join(sorted({request.method for request in result.input_requests.values()}))
            return _refused(f"the tool asks its user for input ({kinds}), which is not supported")
        state = result.request_state
    return _refused(f"the tool asked {_MAX_ROUNDS} times to be called again")


def _refused(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


async def _negotiate(session: ClientSession, revision: Revision, timeout_s: float) -> None:
    if revision == "2026-07-28":
        await _discover(session, timeout_s)
        return
    try:
        await session.initialize()
    except (MCPError, RuntimeError) as refusal:  # RuntimeError: it answers with a revision that has no handshake
        if revision == "handshake" or (isinstance(refusal, MCPError) and refusal.code == CONNECTION_CLOSED):
            raise
        try:
            await _discover(session, timeout_s)
        except (MCPError, RuntimeError):
            raise refusal from None  # the first error has the reason: a wrong token, a wrong path


async def _discover(session: ClientSession, timeout_s: float) -> None:
    """The SDK waits 10 s for this answer, regardless of the session's time-out; a server that is starting may need longer."""
    for _ in range(math.floor(timeout_s / DISCOVER_TIMEOUT_SECONDS)):
        try:
            await session.discover()
        except MCPError as exc:
            if exc.code != REQUEST_TIMEOUT:
                raise
        else:
            return
    await session.discover()
