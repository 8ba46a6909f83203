"""The HTTP side of the gateway in a sampler process: one listening socket for all attempts, and their keys.

A key is one attempt's: made when the attempt begins, known here only by its hash, and unknown again when the attempt ends. The
server listens from the first attempt to the end of the process, on loopback unless told otherwise: uvicorn's end takes a tenth of
a second, for which each attempt that plays alone would wait.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sampler.core.tenant import TenantState
from shared.http.listening import listening_socket, reachable

if TYPE_CHECKING:
    from shared.http.server import HttpServer

log = logging.getLogger(__name__)

KEY_BYTES = 32
STARTED_S = 30.0
BACKLOG = 1024


class EndingSession(Protocol):
    """What requests with a key are given to; it ends with its attempt."""

    async def close(self) -> None: ...


SessionOf = Callable[[str], Awaitable[Any]]  # of a key; None: it is unknown
AppBuilder = Callable[[SessionOf], Any]  # to the ASGI application


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """`url`: without a path. `key`: in no document and no log."""

    url: str
    key: str


class GatewayServer(TenantState):
    """One per process."""

    def __init__(self) -> None:
        self._sessions: dict[str, EndingSession] = {}  # by the hash of the key
        self._starting = asyncio.Lock()
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._address = ("", 0)

    @asynccontextmanager
    async def open(
        self, session: EndingSession, build_app: AppBuilder, host: str = "127.0.0.1"
    ) -> AsyncIterator[OpenAttempt]:
        """The session gets requests until the block ends; those that run then are cancelled. `host`: to listen on, if the
        server does not listen yet."""
        key = new_key()
        self._sessions[key_hash(key)] = session
        try:
            async with self._starting:
                await self._start(build_app, host)
            yield OpenAttempt("http://{}:{}".format(*self._address), key)
        finally:
            del self._sessions[key_hash(key)]
            await session.close()

    async def session_of(self, key: str) -> Any:
        return self._sessions.get(key_hash(key))

    async def close(self) -> None:
        """Stop listening."""
        async with self._starting:
            if self._server is None or self._serving is None:
                return
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    async def _start(self, build_app: AppBuilder, host: str) -> None:
        if self._serving is not None and not self._serving.done():
            return
        from shared.http.server import HttpServer  # samplers without an agent do not need uvicorn

        listening = listening_socket(host, 0, "gateway_host", BACKLOG)
        self._address = (reachable(host), listening.getsockname()[1])
        app = build_app(self.session_of)
        self._server = HttpServer(app, log_config=None, timeout_graceful_shutdown=1)
        self._serving = asyncio.create_task(self._server.serve([listening]), name="gateway")
        async with asyncio.timeout(STARTED_S):
            while not self._server.started:
                if self._serving.done():
                    self._serving.result()
                await asyncio.sleep(0.005)
        log.info("gateway listens address=%s:%d", *self._address)


def new_key() -> str:
    """An attempt's key: in no document and no log."""
    return f"sk-tandem-{secrets.token_urlsafe(KEY_BYTES)}"


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
