"""Serves a shelf of files over HTTP.

    GET /weights/SHA256           {"bytes": …, "chunk_bytes": …, "digests": […]}
    GET /weights/SHA256/held      one byte for each chunk: 1 where it is here
    GET /weights/SHA256/17        the bytes of chunk 17

All else is 404, also a chunk that is not here yet; 503: ask again. Nothing of a request becomes part of a path.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from shared.errors import DataError
from shared.http.asgi import Event, Headers, HttpRefusal, HttpRequest, Receive, Send
from shared.http.server import HttpServer
from shared.weights.pulling.chunked_file import Shelf

PATH = re.compile(r"/weights/([0-9a-f]{64})(?:/(held|[0-9]{1,7}))?")
Application = Callable[[Event, Receive, Send], Awaitable[None]]
BYTES: Headers = [(b"content-type", b"application/octet-stream")]
LAST_ANSWERS_S = 1  # at the end


class WeightsApp:
    """An application of ASGI. `bytes_sent`: of chunks."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self.bytes_sent = 0

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        request = HttpRequest(scope, receive, send)
        try:
            await request.answer(200, *await self._body(request))
        except HttpRefusal as refusal:
            await request.refuse(refusal)

    async def _body(self, request: HttpRequest) -> tuple[bytes, Headers]:
        found = PATH.fullmatch(request.path) if request.method == "GET" else None
        file = None if found is None else self._shelf.get(found[1])
        if found is None or file is None:
            if found is not None and self._shelf.is_expected(found[1]):
                raise HttpRefusal(503, "its digests are being computed")
            raise HttpRefusal(404, "not here")
        if found[2] is None:
            chunking = file.chunking
            listed = {"bytes": chunking.size, "chunk_bytes": chunking.chunk_bytes, "digests": chunking.digests}
            return json.dumps(listed).encode(), []
        if found[2] == "held":
            return bytes(file.held), BYTES
        number = int(found[2])
        if number >= len(file.held) or not file.held[number]:
            raise HttpRefusal(404, "not here")
        try:
            data = await asyncio.to_thread(file.read, number)
        except (OSError, DataError) as exc:  # its version was deleted
            raise HttpRefusal(404, "not here any more") from exc
        self.bytes_sent += len(data)
        return data, BYTES


@asynccontextmanager
async def serving_weights(app: Application, listener: socket.socket) -> AsyncIterator[None]:
    server = HttpServer(app, log_config=None, timeout_graceful_shutdown=LAST_ANSWERS_S)
    served = asyncio.create_task(server.serve(sockets=[listener]), name="weights server")
    try:
        yield
    finally:
        server.should_exit = True
        await served
