"""The HTTP side: SGLang's routes over the engine. All responses are created in this file, `weight_routes`, `answers`,
`chat` or `errors`; nothing here computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast, get_args

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from sampler.engine.api import answers
from sampler.engine.api.chat import chat_json, parse_chat
from sampler.engine.api.errors import ApiError, bad_field, field
from sampler.engine.api.generation import SamplingParams, ServedSequence
from sampler.engine.api.key_guard import KeyGuard
from sampler.engine.api.protocol import parse_generate
from sampler.engine.api.routed import CONTROL_S, Handler, Routed, json_body
from sampler.engine.api.served import PauseMode, ServedEngine
from sampler.engine.api.weight_routes import WEIGHT_ROUTES

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the "
    "operation will not be performed.)\n"
)
HEALTH_GENERATE_S = 20.0


def build_app(engine: ServedEngine, api_key: str | None = None) -> Starlette:
    """`api_key`: the key that requests must send; None: none."""

    def bound(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await handler(engine, request)

        return endpoint

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engine.start(asyncio.get_running_loop())
        yield
        await asyncio.to_thread(engine.stop)

    routes = [Route(path, bound(handler), methods=methods) for path, handler, methods in _ROUTES]
    handlers: dict[Any, Any] = {ApiError: _api_error, 404: _detail, 405: _detail}
    guards = [Middleware(KeyGuard, api_key)] if api_key else []
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=guards)


async def _api_error(request: Request, error: ApiError) -> Response:
    return JSONResponse(error.body, error.status)


async def _detail(request: Request, error: Any) -> Response:
    return JSONResponse({"detail": error.detail}, error.status_code)


async def generate(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    try:
        generations, as_list = parse_generate(body, engine.limits)
    except ApiError as error:
        if body.get("stream") is True:
            return _stream_error(error)
        raise
    if generations[0].stream:
        return StreamingResponse(_events(engine, generations[0]), media_type="text/event-stream")
    if not await _complete(engine, request, generations):
        return Response(status_code=499)  # the client has disconnected
    bodies = [answers.generation_json(g, engine.decode) for g in generations]
    return JSONResponse(bodies if as_list else bodies[0])


async def chat_completions(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    generations = parse_chat(body, engine.chat_template, engine.limits)
    if not await _complete(engine, request, generations):
        return Response(status_code=499)
    return JSONResponse(chat_json(body, generations, engine.decode))


async def _complete(engine: ServedEngine, request: Request, generations: list[ServedSequence]) -> bool:
    """Generate to the end; False if the client disconnected before."""
    done = asyncio.Event()
    for g in generations:
        g.notify = lambda: done.set() if all(g.finish for g in generations) else None
    await engine.submit(generations)
    try:
        return await _finished_before_hang_up(request, done)
    finally:
        await engine.retire(generations)


async def _finished_before_hang_up(request: Request, done: asyncio.Event) -> bool:
    """A generation has no time-out of its own: its token limit, an abort, or its client's disconnection ends it."""
    finished = asyncio.ensure_future(done.wait())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((finished, gone), return_when=asyncio.FIRST_COMPLETED)
        return done.is_set()
    finally:
        finished.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(engine: ServedEngine, g: ServedSequence) -> AsyncIterator[str]:
    """An event every `stream_interval` tokens, with all tokens so far.

    A disconnection cancels this iterator, whose end retires the sequence.
    """
    changed = asyncio.Event()
    g.notify = changed.set
    sent = 0
    try:
        await engine.submit([g])
        while g.finish is None:
            await changed.wait()
            changed.clear()
            ready = len(g.logprobs) - (1 if g.finish else 0)  # the last token goes with the finish reason
            for count in range(sent + 1, ready + 1):
                if g.params.streamed_at(count):
                    yield _event(answers.generation_json(g, engine.decode, count))
            sent = ready
        yield _event(answers.generation_json(g, engine.decode))
        yield "data: [DONE]\n\n"
    except ApiError as error:
        yield _error_event(error)
    finally:
        await engine.retire([g])


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"


def _stream_error(error: ApiError) -> Response:
    return StreamingResponse(iter([_error_event(error)]), media_type="text/event-stream")


def _error_event(error: ApiError) -> str:
    inner = error.body.get("error", error.body)
    message = inner.get("message") if isinstance(inner, dict) else inner
    event = {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}
    return _event(event) + "data: [DONE]\n\n"


async def abort_request(engine: ServedEngine, request: Request) -> Response:
    body = await json_body(request)
    rid, every = field(body, "rid", str, None), field(body, "abort_all", bool, False)
    await asyncio.wait_for(engine.abort(rid, abort_all=every), CONTROL_S)
    return Response()


async def pause_generation(engine: ServedEngine, request: Request) -> Response:
    mode = field(await json_body(request), "mode", str, "abort")
    if mode not in get_args(PauseMode):
        raise bad_field(
            "{'type': 'literal_error', 'loc': ('body', 'mode'), 'msg': \"Input should be 'abort', 'retract' or "
            f"'in_place'\", 'input': {mode!r}}}"
        )
    await asyncio.wait_for(engine.pause(cast(PauseMode, mode)), CONTROL_S)
    return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(engine: ServedEngine, request: Request) -> Response:
    await json_body(request)
    await asyncio.wait_for(engine.proceed(), CONTROL_S)
    return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})


async def flush_cache(engine: ServedEngine, request: Request) -> Response:
    if await asyncio.wait_for(engine.flush(), CONTROL_S):
        return PlainTextResponse(FLUSHED)
    return PlainTextResponse("Flush cache failed.\n", 400)


async def model_info(engine: ServedEngine, request: Request) -> Response:
    return JSONResponse(answers.model_info(engine.model, engine.weight_version))


async def server_info(engine: ServedEngine, request: Request) -> Response:
    return JSONResponse(answers.server_info(engine.model, engine.weight_version, engine.load()))


async def loads(engine: ServedEngine, request: Request) -> Response:
    return JSONResponse(answers.loads(engine.model, engine.load(), engine.throughput(), paused=engine.paused))


async def metrics(engine: ServedEngine, request: Request) -> Response:
    page = answers.metrics(engine.model, engine.load(), engine.throughput()) + engine.own_metrics()
    return PlainTextResponse(page, media_type="text/plain; version=0.0.4; charset=utf-8")


async def list_models(engine: ServedEngine, request: Request) -> Response:
    return JSONResponse(answers.models(engine.model, engine.adapters()))


async def health(engine: ServedEngine, request: Request) -> Response:
    """Cheap, unlike SGLang's, which generates: 503 at once while paused, or when the scheduler stalls."""
    return Response(status_code=200 if engine.healthy else 503)


async def health_generate(engine: ServedEngine, request: Request) -> Response:
    if not engine.healthy:
        return Response(status_code=503)
    done = asyncio.Event()
    params = SamplingParams(max_new_tokens=1)
    name = f"HEALTH_CHECK_{time.monotonic_ns()}"
    probe = engine.limits.sequence(name, [0], params, 1, frozenset(), notify=done.set)
    await engine.submit([probe])
    try:
        await asyncio.wait_for(done.wait(), HEALTH_GENERATE_S)
    except TimeoutError:
        return Response(status_code=503)
    finally:
        await engine.retire([probe])
    return Response()


async def ping(engine: ServedEngine, request: Request) -> Response:
    return Response()


async def tokenize(engine: ServedEngine, request: Request) -> Response:
    ids = engine.encode(field(await json_body(request), "prompt", str))
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": engine.model.context_length})


_ROUTES: list[Routed] = [
    *WEIGHT_ROUTES,
    ("/generate", generate, ["POST"]),
    ("/v1/chat/completions", chat_completions, ["POST"]),
    ("/abort_request", abort_request, ["POST"]),
    ("/pause_generation", pause_generation, ["POST"]),
    ("/continue_generation", continue_generation, ["POST"]),
    ("/flush_cache", flush_cache, ["GET", "POST"]),
    ("/model_info", model_info, ["GET"]),
    ("/get_model_info", model_info, ["GET"]),
    ("/server_info", server_info, ["GET"]),
    ("/get_server_info", server_info, ["GET"]),
    ("/v1/loads", loads, ["GET"]),
    ("/metrics", metrics, ["GET"]),
    ("/v1/models", list_models, ["GET"]),
    ("/health", health, ["GET"]),
    ("/health_generate", health_generate, ["GET"]),
    ("/ping", ping, ["GET"]),
    ("/ready", ping, ["GET"]),
    ("/tokenize", tokenize, ["POST"]),
    ("/v1/tokenize", tokenize, ["POST"]),
]
