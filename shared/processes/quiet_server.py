"""uvicorn inside a process that has signal handlers of its own, which sends few pieces.

What is written in one round of the event loop is sent together: uvicorn writes head, parts and end of a response one by one, and
each piece wakes the client.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 2048  # connections that wait to be accepted
KEEP_ALIVE_S = 75  # of an idle connection
_TICK_S = 1.0


class QuietServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would close connections before the calls on them have ended.

    A request's headers and trailers are bounded: h11 refuses more than 64 KiB. httptools, which uvicorn prefers where it is
    installed, keeps as many as a client sends; it saves 0.05 ms, and loses the body of a request that offers HTTP/2.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        """`app`: of ASGI. `options`: of `uvicorn.Config`."""
        self._ending = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app, http=_Protocol, lifespan="off", access_log=False, proxy_headers=False, ws="none", **options
            )
        )

    @property
    def should_exit(self) -> bool:
        return self._ending.is_set()

    @should_exit.setter
    def should_exit(self, yes: bool) -> None:
        """To be called in the server's event loop."""
        (self._ending.set if yes else self._ending.clear)()

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether it should end. The clock of its Date header needs one look a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(_Gathering(transport))


class _Gathering(asyncio.Transport):
    """Sends in one piece what is written before the event loop goes on."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []

    def write(self, data: Any) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        whole, self._parts = b"".join(self._parts), []
        if whole and not self._transport.is_closing():  # the client may have left since: uvloop would raise
            self._transport.write(whole)

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
