"""What a bundled tool server does with the messages of its client: answers at once, or by a call that runs on its own."""

import asyncio
import contextlib
import threading
import traceback
from collections.abc import Callable
from typing import Any, cast

from sampler.mcp_docker.tools.bundled import BundledServer, BundledTool
from sampler.mcp_docker.tools.protocol import (
    BAD_REQUEST,
    CONNECTION_CLOSED,
    INTERNAL,
    JsonObject,
    ProtocolError,
    RequestKey,
    ToolProtocol,
    answered,
    called,
    failed,
    key_of,
    parsed_line,
    text_result,
)

_MOST_THREADS = 32  # calls beyond wait


class BundledConnection(asyncio.Protocol):
    """Both directions: what is read from stdin, and how far stdout is written."""

    def __init__(self, server: BundledServer, ended: "asyncio.Future[None]", write: Callable[[bytes], object]) -> None:
        self._tools = server.tools
        self._protocol = ToolProtocol(server.name, [tool.listed for tool in server.tools.values()])
        self._ended, self._write = ended, write
        self._pending = bytearray()
        self._searched = 0
        self._calls: dict[RequestKey, asyncio.Task[None]] = {}
        self._threads = asyncio.Semaphore(_MOST_THREADS)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (end := self._pending.find(b"\n", self._searched)) >= 0:
            line = bytes(self._pending[:end])
            del self._pending[: end + 1]
            self._searched = 0
            if line := line.strip():
                self._on_line(line)
        self._searched = len(self._pending)

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        for key, task in self._calls.items():
            task.cancel()
            self._write(failed(key, ProtocolError(CONNECTION_CLOSED, "Connection closed")))
        self._calls = {}
        if not self._ended.done():
            self._ended.set_result(None)

    def _on_line(self, line: bytes) -> None:
        try:
            message = parsed_line(line)
        except ProtocolError as exc:
            self._write(failed(None, exc))
            return
        if message is None or "method" not in message:  # no message, or an answer: nothing was asked
            return
        method, params, key = message["method"], message.get("params", {}), key_of(message)
        if "id" not in message:
            self._on_notification(method, params)
        elif key is not None:
            try:
                self._on_request(key, method, params)
            except ProtocolError as exc:
                self._write(failed(key, exc))

    def _on_notification(self, method: Any, params: Any) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            with contextlib.suppress(TypeError):  # an id that is no key
                if (task := self._calls.pop(params.get("requestId"), None)) is not None:  # type: ignore[arg-type]
                    task.cancel()  # and there is no answer

    def _on_request(self, key: RequestKey, method: Any, params: Any) -> None:
        if not isinstance(method, str) or not isinstance(params, dict):
            raise ProtocolError(BAD_REQUEST, "Invalid request: method is not a text, or params is not an object")
        if key in self._calls:
            raise ProtocolError(BAD_REQUEST, f"Invalid request: one with id {key!r} is in flight")
        result = self._protocol.result(method, params)
        if result is None:
            name, arguments = called(params)
            tool = self._tools.get(name)
            if tool is not None and not tool.quick:
                self._calls[key] = asyncio.ensure_future(self._call(key, tool, arguments))
                return
            result = self._protocol.complete(self._at_once(name, tool, arguments))
        self._write(answered(key, result))

    def _at_once(self, name: str, tool: BundledTool | None, arguments: JsonObject) -> JsonObject:
        if tool is None:
            return text_result(f"there is no tool {name!r}; expected one of {', '.join(self._tools)}", is_error=True)
        try:
            return tool.plain_result(arguments)
        except Exception as exc:
            raise _internal(exc) from exc

    async def _call(self, key: RequestKey, tool: BundledTool, arguments: JsonObject) -> None:
        try:
            if tool.is_async:
                result = await tool.result(arguments)
            else:
                async with self._threads:
                    result = await _in_thread(lambda: tool.plain_result(arguments))
            line = answered(key, self._protocol.complete(result))
        except Exception as exc:  # noqa: BLE001 - as above
            line = failed(key, _internal(exc))
        if self._calls.pop(key, None) is not None:
            self._write(line)


def _internal(exc: Exception) -> ProtocolError:
    traceback.print_exception(exc)
    return ProtocolError(INTERNAL, f"Internal error: {type(exc).__name__}: {str(exc)[:500]}")


async def _in_thread(function: Callable[[], JsonObject]) -> JsonObject:
    """In a thread that the process's end does not wait for, unlike an executor's."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[JsonObject] = loop.create_future()

    def settle(result: JsonObject | None, failure: BaseException | None) -> None:
        if not found.done():
            found.set_result(cast(JsonObject, result)) if failure is None else found.set_exception(failure)

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as exc:  # noqa: BLE001 - raised where it is awaited
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await found
