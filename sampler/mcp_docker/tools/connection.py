"""What a bundled tool server does with the messages of its client: answers them, or begins a call."""

import traceback
from collections.abc import Callable
from typing import Any, Protocol

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


class CallInFlight(Protocol):
    def cancel(self) -> object: ...


BeginCall = Callable[[RequestKey, BundledTool, JsonObject], CallInFlight]


class BundledConnection:
    """`begin` starts a call that is not quick, whose answer is `finish`ed."""

    def __init__(self, server: BundledServer, write: Callable[[bytes], object], begin: BeginCall | None = None) -> None:
        self._tools = server.tools
        self._protocol = ToolProtocol(server.name, [tool.listed for tool in server.tools.values()])
        self._write, self._begin = write, begin
        self._pending = bytearray()
        self._searched = 0
        self._calls: dict[RequestKey, CallInFlight] = {}

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (end := self._pending.find(b"\n", self._searched)) >= 0:
            line = bytes(self._pending[:end])
            del self._pending[: end + 1]
            self._searched = 0
            line = line.strip()
            if line:
                self._on_line(line)
        self._searched = len(self._pending)

    def end(self) -> None:
        """Nothing more is read."""
        for key, call in self._calls.items():
            call.cancel()
            self._write(failed(key, ProtocolError(CONNECTION_CLOSED, "Connection closed")))
        self._calls = {}

    def finish(self, key: RequestKey, result: JsonObject | ProtocolError) -> None:
        """Answer a call that was begun, unless it was cancelled."""
        if self._calls.pop(key, None) is not None:
            if isinstance(result, ProtocolError):
                self._write(failed(key, result))
            else:
                self._write(answered(key, self._protocol.complete(result)))

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
            key = key_of({"id": params.get("requestId")})
            if key is not None and (call := self._calls.pop(key, None)) is not None:
                call.cancel()  # and there is no answer

    def _on_request(self, key: RequestKey, method: Any, params: Any) -> None:
        if not isinstance(method, str) or not isinstance(params, dict):
            raise ProtocolError(BAD_REQUEST, "Invalid request: method is not a text, or params is not an object")
        if key in self._calls:
            raise ProtocolError(BAD_REQUEST, f"Invalid request: one with id {key!r} is in flight")
        result = self._protocol.result(method, params)
        if result is None:
            name, arguments = called(params)
            tool = self._tools.get(name)
            if tool is not None and not tool.quick and self._begin is not None:
                self._calls[key] = self._begin(key, tool, arguments)
                return
            result = self._protocol.complete(self._at_once(name, tool, arguments))
        self._write(answered(key, result))

    def _at_once(self, name: str, tool: BundledTool | None, arguments: JsonObject) -> JsonObject:
        if tool is None:
            return text_result(f"there is no tool {name!r}; expected one of {', '.join(self._tools)}", is_error=True)
        try:
            return tool.result(arguments)
        except Exception as exc:  # a tool may raise anything: the call is answered with the error
            raise internal(exc) from exc


def internal(exc: Exception) -> ProtocolError:
    """Of a call whose tool has an error. The traceback is on stderr."""
    traceback.print_exception(exc)
    return ProtocolError(INTERNAL, f"Internal error: {type(exc).__name__}: {str(exc)[:500]}")
