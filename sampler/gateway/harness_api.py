"""What harnesses that run elsewhere ask of the gateway, next to the dialects of `app`.

POST /claim       {"wait_s": 20}                       with the gateway's token: a task, and a key for its attempt
POST /heartbeat                                        with that key: the attempt goes on, though it asks for nothing
POST /finish      {"score": 1.0} | {"answer": "7"} | {}
                  {"error": "…"} | {"give_back": true} with that key: how the attempt ended; may be sent again
GET  /health
"""

import asyncio
import contextlib
import hmac
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sampler.gateway.app import NO_RETRY, answer_to, bearer_of, read_body
from sampler.gateway.attempt import Attempt
from sampler.gateway.bodies import validated
from sampler.gateway.dialects import CHAT
from sampler.gateway.exchange import GatewayError, Problem
from shared.documents import Record
from shared.documents.agent_sessions import SessionEnd
from shared.episodes.feedback import FeedbackGiven
from shared.errors import FeedbackRefused
from shared.outside_text import MAX_ERROR_CHARS, clipped
from shared.processes.waits import Wait, waiting
from shared.scores import LARGEST_SCORE
from shared.unforeseen import is_of_the_process

MAX_WAIT_S = 60.0
POLL_S = 0.25
RETRY_AFTER_S = 2
MAX_ANSWER_CHARS = 1_000_000
MAX_HARNESS_BYTES = 8 * 1024 * 1024  # such an answer, with each character escaped
Offer = Mapping[str, Any]


class Claims(Protocol):
    """The process that has the attempts."""

    @property
    def doing(self) -> str: ...

    @property
    def is_draining(self) -> bool: ...

    async def claim_attempt(self) -> Offer | None: ...

    async def attempt_of(self, key: str) -> Attempt | None: ...

    async def end_attempt(self, attempt: Attempt, end: SessionEnd) -> Record: ...

    async def give_feedback(self, record: str, score: float, **how: Any) -> FeedbackGiven: ...


class _ClaimBody(BaseModel, extra="forbid", strict=True):
    wait_s: float = Field(0.0, ge=0, le=MAX_WAIT_S)


class _FinishBody(BaseModel, extra="forbid", strict=True):
    score: float | None = Field(None, allow_inf_nan=False, ge=-LARGEST_SCORE, le=LARGEST_SCORE)
    answer: str | None = Field(None, max_length=MAX_ANSWER_CHARS)
    error: str | None = None
    give_back: bool = False

    @model_validator(mode="after")
    def says_one_thing(self) -> "_FinishBody":
        given = [self.score is not None, self.answer is not None, self.error is not None, self.give_back]
        if sum(given) > 1:
            raise ValueError("expected at most one of score, answer, error, give_back")
        return self


class _FeedbackBody(BaseModel, extra="forbid", strict=True):
    record: str
    score: float
    turn: int | None = None
    comment: str | None = None
    source: str | None = None


def harness_routes(claims: Claims, token: str | None) -> Sequence[Route]:
    """`token`: None: none is needed to claim."""
    line = asyncio.Lock()
    handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/claim": lambda request: _claim(claims, token, line, request),
        "/heartbeat": lambda request: _heartbeat(claims, request),
        "/finish": lambda request: _finish(claims, request),
        "/v1/feedback": lambda request: _feedback(claims, token, request),
    }
    return [
        *(Route(path, _guarded(handle), methods=["POST"]) for path, handle in handlers.items()),
        Route("/health", lambda request: JSONResponse({"status": "ok", "doing": claims.doing}), methods=["GET"]),
    ]


def _guarded(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return await handle(request)
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):
                raise
            return answer_to(exc, request, CHAT)

    return guarded


def require_token(request: Request, token: str | None) -> None:
    """Raises GatewayError."""
    if token is not None and not hmac.compare_digest((bearer_of(request) or "").encode(), token.encode()):
        raise GatewayError(Problem.NO_KEY, "the gateway's token is missing or wrong; send Authorization: Bearer TOKEN")


async def _claim(claims: Claims, token: str | None, line: asyncio.Lock, request: Request) -> Response:
    require_token(request, token)
    body = validated(_ClaimBody, await _json(request))
    offer = await claims.claim_attempt()
    if offer is None and body.wait_s:
        offer = await _next_offer(claims, line, request, body.wait_s)
    if offer is None:
        why = {"error": {"message": f"no task can be claimed now: {claims.doing}", "type": "busy", "code": "busy"}}
        return JSONResponse(why, 503, headers={"Retry-After": str(RETRY_AFTER_S)})
    if await request.is_disconnected():
        gone = SessionEnd(error="its harness left before it was told of the task", given_back=True)
        attempt = await claims.attempt_of(offer["api_key"])
        if attempt is not None:
            await claims.end_attempt(attempt, gone)
        return Response(status_code=499)
    return JSONResponse(offer)


async def _next_offer(claims: Claims, line: asyncio.Lock, request: Request, wait_s: float) -> Offer | None:
    """The first of the clients that wait in `line` asks for a task; the others cost nothing until it has one."""
    until = time.monotonic() + wait_s
    wait = Wait("a task for an agent's claim", "none is free", f"one is, for {wait_s:g} s at most")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(waiting(wait, inside=True))
        try:
            async with asyncio.timeout(wait_s):
                await stack.enter_async_context(line)
        except TimeoutError:
            return None
        while not (claims.is_draining or await request.is_disconnected()):
            offer = await claims.claim_attempt()
            if offer is not None:
                return offer
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                break
            await asyncio.sleep(min(POLL_S, remaining_s))
        return None


async def _heartbeat(claims: Claims, request: Request) -> Response:
    await (await _attempt(claims, request)).renew(always=True)
    return JSONResponse({"ok": True})


async def _finish(claims: Claims, request: Request) -> Response:
    attempt = await _attempt(claims, request)
    body = validated(_FinishBody, await _json(request))
    error = None if body.error is None else clipped(body.error, MAX_ERROR_CHARS)
    end = SessionEnd(score=body.score, answer=body.answer, error=error, given_back=body.give_back)
    record = await claims.end_attempt(attempt, end)
    assert record.score is None or math.isfinite(record.score), "scores are checked before they are stored"
    answer = {"record": record.id, "status": record.status.value, "score": record.score, "error": record.error}
    return JSONResponse(answer | {"termination": record.termination})


async def _feedback(claims: Claims, token: str | None, request: Request) -> Response:
    """409: the episode does not wait for this feedback, and why."""
    require_token(request, token)
    body = validated(_FeedbackBody, await _json(request))
    try:
        given = await claims.give_feedback(**body.model_dump())
    except FeedbackRefused as exc:
        if exc.why == "invalid":
            raise GatewayError(Problem.INVALID, str(exc)) from exc
        return JSONResponse({"error": {"message": str(exc), "type": exc.why, "code": exc.why}}, 409, headers=NO_RETRY)
    answer = {"record": given.record, "turn": given.turn, "score": given.score, "again": given.again}
    return JSONResponse(answer | {"episodes": given.episodes})


async def _attempt(claims: Claims, request: Request) -> Attempt:
    key = bearer_of(request)
    attempt = None if key is None else await claims.attempt_of(key)
    if attempt is None:
        raise GatewayError(Problem.NO_KEY, "the attempt's key is missing or unknown; send Authorization: Bearer KEY")
    return attempt


async def _json(request: Request) -> Any:
    return (await read_body(request, MAX_HARNESS_BYTES, lambda body: body, empty={}))[1]
