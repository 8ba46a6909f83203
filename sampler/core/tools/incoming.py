"""Simplifies a tool server's messages for the SDK's validation, over every transport.

That validation reports every error of every item: 600 blocks of an unknown kind yield an error of 300,000 characters, and a
million kill the process. So here
  * a content block that the SDK does not know becomes a text that names it, and the result stays a normal answer; what is only
    malformed beside its content (annotations, `_meta`) is left out;
  * content that is null, one block or a text is a list of it, and an `isError` of null is absent;
  * only the first `MAX_BLOCKS` blocks are kept, followed by a text with the number of the others;
  * a list of tools with a malformed entry, or with more than `MAX_TOOLS`, is an error that names the entry.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from anyio import EndOfStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ContentBlock,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
)
from pydantic import TypeAdapter, ValidationError

from shared.outside_text import clipped

MAX_BLOCKS = 1000
MAX_TOOLS = 10_000
_SHOWN_CHARS = 60
PROGRESS = "notifications/progress"
_OF_A_CALL = ("content", "structuredContent", "isError")  # members of the answer to a call
_BESIDE = ("annotations", "_meta")  # of a block, beside its content

OnProgress = Callable[[JSONRPCNotification], Awaitable[None]]

_block: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)


@contextlib.asynccontextmanager
async def checked(transport: Any, on_progress: OnProgress | None = None) -> AsyncIterator[tuple[Any, Any]]:
    """`transport`, as `mcp.Client` takes it, with every incoming message simplified. `on_progress` sees reports of progress
    before the SDK does, which knows only the requests that it sent itself."""
    async with transport as (read_stream, write_stream):
        yield _PlainStream(read_stream, on_progress), write_stream


def plain(message: JSONRPCMessage) -> JSONRPCMessage:
    """`message` if the SDK can validate it, else its replacement."""
    if not isinstance(message, JSONRPCResponse):
        return message
    result, tools = message.result, message.result.get("tools")
    if any(name in result for name in _OF_A_CALL):
        result["content"] = _plain_content(_listed(result.get("content")))
        if result.get("isError", False) is None:
            del result["isError"]
    elif isinstance(tools, list) and (problem := _problem_of(tools)):
        return JSONRPCError(jsonrpc="2.0", id=message.id, error=ErrorData(code=PARSE_ERROR, message=problem))
    return message


def _listed(content: Any) -> list[Any]:
    """Some servers write no list where they have one block, or none."""
    if isinstance(content, list):
        return content
    return [] if content is None else [_text(content) if isinstance(content, str) else content]


def _plain_content(content: list[Any]) -> list[Any]:
    blocks = [_plain_block(block) for block in content[:MAX_BLOCKS]]
    if len(content) > MAX_BLOCKS:
        blocks.append(_text(f"[{len(content) - MAX_BLOCKS} more blocks: not shown]"))
    return blocks


def _plain_block(block: Any) -> Any:
    if _is_known(block):
        return block
    bare = {name: block[name] for name in block if name not in _BESIDE} if isinstance(block, dict) else None
    return bare if _is_known(bare) else _text(f"[{_kind(block)}: not shown]")


def _is_known(block: Any) -> bool:
    try:
        _block.validate_python(block, by_name=False)
    except ValidationError:
        return False
    return True


def _kind(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return clipped(kind, _SHOWN_CHARS) if isinstance(kind, str) else "a block of no kind"


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _problem_of(tools: list[Any]) -> str:
    """Why this is not a list of tools; empty if it is one."""
    if len(tools) > MAX_TOOLS:
        return f"it lists {len(tools)} tools on one page; expected at most {MAX_TOOLS}"
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            return f"tool {index} is {clipped(repr(tool), _SHOWN_CHARS)}; expected an object with a name"
        if not isinstance(tool.get("inputSchema"), dict):
            return f"tool {index}, {clipped(tool['name'], _SHOWN_CHARS)!r}, has no inputSchema"
    return ""


class _PlainStream:
    """The SDK's stream of incoming messages, each simplified by `plain`."""

    def __init__(self, stream: Any, on_progress: OnProgress | None) -> None:
        self._stream = stream
        self._on_progress = on_progress

    @property
    def last_context(self) -> Any:
        """The sender's context, which the SDK passes on if a transport has one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._stream.receive()
        if isinstance(item, SessionMessage):
            item.message = message = plain(item.message)
            if (
                isinstance(message, JSONRPCNotification)
                and message.method == PROGRESS
                and self._on_progress is not None
            ):
                await self._on_progress(message)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
