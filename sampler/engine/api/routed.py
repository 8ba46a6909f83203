"""What the files of routes share: the form of a handler, the JSON body, the time-out of commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sampler.engine.api.errors import parse_json
from sampler.engine.api.served import ServedEngine

CONTROL_S = 60.0  # a control command waits at most for one step of the scheduler

Handler = Callable[[ServedEngine, Request], Awaitable[Response]]
Routed = tuple[str, Handler, list[str]]  # path, handler, methods


async def json_body(request: Request) -> dict[str, Any]:
    return parse_json(await request.body(), request.headers.get("content-type", ""))
