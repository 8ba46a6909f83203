"""The HTTP server of every application of ASGI: uvicorn, with bounds on what clients may hold open, in a process that has signal
handlers of its own.

What is written in one round of the event loop is sent together: uvicorn writes head, parts and end of a response one by one, and
each piece wakes the client.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn

from shared.http.connections import ConnectionLimits, Connections
from shared.http.protocol import BoundedProtocol
from shared.open_files import allow_many_files

KEEP_ALIVE_S = 75  # of an idle connection: clients with connection pools close theirs first
_TICK_S = 1.0


class HttpServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would close connections before the calls on them have ended.

    A request's headers and trailers are bounded: h11 refuses more than 64 KiB. httptools, which uvicorn prefers where it is
    installed, keeps as many as a client sends; it saves 0.05 ms, and loses the body of a request that offers HTTP/2.
    """

    def __init__(self, app: Any, limits: ConnectionLimits = ConnectionLimits(), **options: Any) -> None:
        """`app`: of ASGI. `options`: of `uvicorn.Config`."""
        self._ending = asyncio.Event()
        self.clients = Connections(limits, allow_many_files())
        settings: dict[str, Any] = {"lifespan": "off", "timeout_keep_alive": KEEP_ALIVE_S, **options}
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(BoundedProtocol, self.clients, limits)),
                access_log=False,
                proxy_headers=False,
                ws="none",
                backlog=self.clients.backlog,
                **settings,
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
        """uvicorn looks ten times a second whether it should end. The clock of its Date header needs one look a second, and so do
        clients that send nothing."""
        while not await self.on_tick(0):
            self._close_overdue()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._ending.wait()

    def _close_overdue(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            cast(BoundedProtocol, connection).close_if_overdue(now)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
