"""The routes of the gateway: reads a request, asks the session of its key, answers in the request's dialect.

    POST /v1/chat/completions, /v1/responses                                 OpenAI
    POST /v1/messages, /v1/messages/count_tokens                             Anthropic
    POST /v1/models/MODEL:generateContent, … (and /v1beta/models/…)          Google
    GET  /v1/models         the policies
    POST /score             {"score": 1.0, "turn": "<id of a reply>"}

A stream has the reply's text while it is sampled, and keep-alives while there is none to tell; calls come when they are whole.
Statuses are the dialect's own unless the stream has begun, at the latest after `PATIENCE_S`; then an error is its last event.
Events that are known together are sent together: each part that is sent wakes this process and the client's.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sampler.gateway.bodies import MAX_BODY_BYTES, most_body_bytes, plain_json
from sampler.gateway.dialects import CHAT_PATHS, COUNT_PATHS, Dialect, dialect_of
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    Event,
    GatewayError,
    Problem,
    RetryRequest,
    SentRequest,
    checked_score,
)
from sampler.gateway.received_images import images_of
from sampler.gateway.streaming import BROKEN, ReplyStream
from sampler.gateway.unused import header_of
from shared.unforeseen import bug_of, is_of_the_process

log = logging.getLogger(__name__)

LONG_BYTES = 200_000  # read in a thread: a megabyte of short messages takes half a second
_BODIES = ThreadPoolExecutor(2, thread_name_prefix="body")
MAX_ID_CHARS = 200
IDENTITY_CHARS = 32
PATIENCE_S = 10.0
KEEP_ALIVE_S = 10.0
EVENT_STREAM = "text/event-stream; charset=utf-8"
NO_RETRY = {"x-should-retry": "false"}  # the SDKs obey: what failed here was retried, or cannot succeed


class ServedSession(Protocol):
    """What requests with a key are given to: `AttemptSession`, and `Attempt` of the gateway as a process of its own."""

    @property
    def models(self) -> list[str]: ...

    @property
    def max_tokens(self) -> int:
        """Of a context."""
        ...

    @property
    def sees(self) -> bool:
        """Whether one of the models reads images."""
        ...

    def stream_of(self, request: ChatRequest) -> ReplyStream | None: ...

    def unused(self, request: ChatRequest) -> list[str]: ...

    async def referenced(self, request: ChatRequest) -> ChatRequest: ...

    async def chat(self, request: ChatRequest, sent: SentRequest, stream: ReplyStream | None = None) -> ChatReply: ...

    async def count_tokens(self, request: ChatRequest) -> int: ...

    async def give_score(self, score: float, turn: str | None = None) -> None: ...

    async def note_refused(self, error: GatewayError) -> None: ...


ResultT = TypeVar("ResultT")
Handler = Callable[[Request, ServedSession], Awaitable[Response]]
SessionOf = Callable[[str], Awaitable[ServedSession | None]]
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


def build_app(session_of: SessionOf, others: Sequence[Route] = ()) -> ASGIApp:
    """`others`: routes of the process that has the sessions. Requests for replies do without Starlette's routes and layers."""

    async def guarded(request: Request, handle: Handler) -> Response:
        session: ServedSession | None = None
        try:
            session = await _session(session_of, request)
            return await handle(request, session)
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):
                raise
            if isinstance(exc, GatewayError) and session is not None:
                await session.note_refused(exc)
            return answer_to(exc, request, dialect_of(request.url.path))

    def route(path: str, handle: Handler, method: str = "POST") -> Route:
        async def endpoint(request: Request) -> Response:
            return await guarded(request, handle)

        return Route(path, endpoint, methods=[method])

    async def unknown(request: Request, exc: Exception) -> Response:
        known = ", ".join([*CHAT_PATHS, *COUNT_PATHS, "/v1/models", "/score"])
        error = GatewayError(Problem.NOT_FOUND, f"{request.method} {request.url.path} is unknown; known: {known}")
        return error_response(dialect_of(request.url.path), error)

    routes = [route(path, partial(_chat, dialect)) for path, dialect in CHAT_PATHS.items()]
    routes += [route(path, partial(_count, *how)) for path, how in COUNT_PATHS.items()]
    routes += [route("/v1/models", _models, "GET"), route("/score", _score)]
    routes += others
    starlette = Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        dialect = CHAT_PATHS.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if dialect is None:
            await starlette(scope, receive, send)
        else:
            await (await guarded(Request(scope, receive), partial(_chat, dialect)))(scope, receive, send)

    return app


def answer_to(exc: BaseException, request: Request, dialect: Dialect) -> Response:
    """What the client reads of an error. A bug fails its request alone."""
    if isinstance(exc, ClientDisconnect):
        return Response(status_code=499)
    return error_response(dialect, error_of(exc, request.url.path))


def error_of(exc: BaseException, path: str) -> GatewayError:
    if isinstance(exc, GatewayError):
        return exc
    bug = bug_of(exc)
    log.error("bug met request of %s: %s\n%s", path, bug.error, bug.traceback)
    return GatewayError(Problem.FAILED, f"the gateway met a bug: {bug.error}")


def bearer_of(request: Request) -> str | None:
    match = _BEARER.fullmatch(request.headers.get("authorization", ""))
    return None if match is None else match[1]


async def _session(session_of: SessionOf, request: Request) -> ServedSession:
    given = [request.headers.get("x-api-key"), request.headers.get("x-goog-api-key"), request.query_params.get("key")]
    for key in (*given, bearer_of(request)):
        if key and (session := await session_of(key)) is not None:
            return session
    raise GatewayError(Problem.NO_KEY, "the API key is unknown, or its attempt has ended")


async def read_body(
    request: Request, most: int, read: Callable[[Any], ResultT], empty: Any = None, *, with_nul: bool = False
) -> tuple[bytes, ResultT]:
    """A body of at most `most` bytes, and what `read` makes of its JSON. `empty`: what a body without a byte stands for.
    `with_nul`: texts may contain U+0000.

    Raises GatewayError, for a body that is too large once its client has sent it: else it would not read the answer.
    """
    body, count = bytearray(), 0
    async for part in request.stream():
        count += len(part)
        if count <= most:
            body += part
        elif count > MAX_BODY_BYTES:
            break
        else:
            body.clear()
    if count > most:
        raise GatewayError(Problem.TOO_LARGE, f"the body has {count:,} bytes or more; expected at most {most:,}")
    raw = bytes(body)
    body.clear()
    if not raw and empty is not None:
        return raw, read(empty)
    return raw, await _worked(count, partial(_read, raw, read, with_nul))


async def _worked(num_bytes: int, work: Callable[[], ResultT]) -> ResultT:
    """In a thread, for long bodies."""
    return await asyncio.get_running_loop().run_in_executor(_BODIES, work) if num_bytes > LONG_BYTES else work()


def _read(raw: bytes, read: Callable[[Any], ResultT], with_nul: bool) -> ResultT:
    return read(plain_json(raw, with_nul=with_nul))


async def _request_of(
    request: Request, session: ServedSession, read: Callable[[Any, str], ChatRequest]
) -> tuple[SentRequest, ChatRequest]:
    """Without the body: images are stored, and named by references. Each message takes a token at least. Raises GatewayError."""
    model, most = request.path_params.get("model", ""), session.max_tokens

    def chat_of(body: Any) -> ChatRequest:
        chat = read(body, model)
        count = len(chat.messages)
        if count > most:
            raise GatewayError(
                Problem.TOO_LARGE, f"{count:,} messages; expected at most {most:,}, one for a token (max_tokens)"
            )
        return chat

    raw, chat = await read_body(request, most_body_bytes(most, sees=session.sees), chat_of, with_nul=True)
    sent = await _worked(len(raw), partial(_sent, request, raw))
    return sent, await session.referenced(chat) if images_of(chat) else chat


async def _chat(dialect: Dialect, request: Request, session: ServedSession) -> Response:
    sent, chat = await _request_of(request, session, dialect.read)
    stream, headers = session.stream_of(chat), header_of(session.unused(chat))
    changed = asyncio.Event() if stream is None else stream.changed
    asking = asyncio.create_task(session.chat(chat, sent, stream), name="gateway request")
    gone = asyncio.create_task(_disconnected(request), name="gateway client")
    for task in (asking, gone):
        task.add_done_callback(lambda _: changed.set())
    streams = False
    try:
        await _wait(changed, None if stream is None else PATIENCE_S)
        if asking.done():
            reply = asking.result()  # an error now is a status
            if stream is None:
                return JSONResponse(dialect.reply(reply, chat), headers=headers)
            text = "".join(map(_event, dialect.writer(chat).whole(reply)))
            return Response(text, media_type=EVENT_STREAM, headers=headers)
        if gone.done() or stream is None:
            asking.cancel()
            await asyncio.wait([asking])
            return Response(status_code=499)
        streams = True
        return _EventResponse(_parts(dialect, chat, asking, gone, stream), headers)
    finally:
        if not streams:
            asking.cancel()
            gone.cancel()


def _sent(request: Request, raw: bytes) -> SentRequest:
    given = request.headers.get("idempotency-key", "")[:MAX_ID_CHARS]
    count = request.headers.get("x-stainless-retry-count", "0")
    identity = hashlib.sha256(f"{request.url.path} {given} ".encode())
    identity.update(raw)
    return SentRequest(identity.hexdigest()[:IDENTITY_CHARS], is_again=bool(given) or count not in ("", "0"))


async def _wait(changed: asyncio.Event, limit_s: float | None) -> bool:
    """Whether it is set within `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            await changed.wait()
    except TimeoutError:
        return False
    return True


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventResponse(Response):
    """Sends parts as they come; the last of them ends the body."""

    def __init__(self, parts: AsyncGenerator[tuple[str, bool]], headers: Mapping[str, str]) -> None:
        self._parts = parts
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, "content-type": EVENT_STREAM})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._parts) as parts:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for text, is_last in parts:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": not is_last})


async def _parts(
    dialect: Dialect,
    chat: ChatRequest,
    asking: "asyncio.Task[ChatReply]",
    gone: "asyncio.Task[None]",
    stream: ReplyStream,
) -> AsyncGenerator[tuple[str, bool]]:
    """Events, and whether they are the last. The client's leaving cancels its request, as closing this does."""
    writer = dialect.writer(chat)
    try:
        while not asking.done():
            if stream.broken:
                raise RetryRequest(BROKEN)
            if gone.done():
                return
            stream.changed.clear()
            if stream.head is not None and (events := writer.told(stream.head, stream.reasoning, stream.content)):
                yield "".join(map(_event, events)), False
            if not await _wait(stream.changed, KEEP_ALIVE_S):
                yield dialect.keep_alive, False
        yield "".join(map(_event, writer.whole(asking.result()))), True
    except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
        if is_of_the_process(exc):
            raise
        yield _event(dialect.error_event(error_of(exc, "a stream"))), True
    finally:
        asking.cancel()
        gone.cancel()


def _event(event: Event) -> str:
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


async def _count(
    read: Callable[[Any, str], ChatRequest], name: str, request: Request, session: ServedSession
) -> Response:
    _, chat = await _request_of(request, session, read)
    return JSONResponse({name: await session.count_tokens(chat)})


async def _models(request: Request, session: ServedSession) -> Response:
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "tandem"} for name in session.models]
    return JSONResponse({"object": "list", "data": models})


async def _score(request: Request, session: ServedSession) -> Response:
    _, body = await read_body(request, most_body_bytes(session.max_tokens), lambda body: body)
    given: Mapping[str, Any] = body if isinstance(body, dict) else {}
    score, turn = given.get("score"), given.get("turn")
    if isinstance(score, bool) or not isinstance(score, int | float) or not isinstance(turn, str | None):
        raise GatewayError(Problem.INVALID, 'expected {"score": a number, "turn": the id of a reply, or nothing}')
    await session.give_score(checked_score(score), turn)
    return JSONResponse({"ok": True})


def error_response(dialect: Dialect, error: GatewayError) -> Response:
    status, body = dialect.error(error)
    return JSONResponse(body, status, headers=None if error.may_pass else NO_RETRY)
