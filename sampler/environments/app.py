"""The controller protocol over HTTP (AgentRL's; docs/bring/environments.md).

GET  /api/get_indices?name=KIND      the tasks of an environment
GET  /api/list_workers               {kind: {workers: {id: {status, capacity, current}}}}
POST /api/start_sample               {name, index, custom_task} ─▶ the header session_id, and the first step
POST /api/interact                   {messages}, with the header session_id ─▶ the next step; an empty message renews
POST /api/cancel                     the header alone
GET  /health                         whether it serves: no token needed

Full: 406 with Retry-After. No such session: 404. The environment raised, or its worker ended: 500. It returned what is no step:
the session's last step, of status "task error", with `"final": true`, since playing it again cannot help. A task that is not
offered, and messages of another shape: 422.
A web page of another origin, where no token is set: 403.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from sampler.environments.checked_step import checked, shown
from sampler.environments.environment import FINAL, NO_INDEX, SESSION_HEADER, TASK_ERROR, Step
from sampler.environments.sessions import Occupied, SessionLost, WorldSessions
from sampler.environments.worker_process import ServiceFull, TaskNotOffered, WorkerLost, WorldFailed, WorldWrong
from shared.http.asgi import (
    Event,
    HttpRefusal,
    HttpRequest,
    Receive,
    Send,
    host_name,
    require_token,
    retry_after,
)
from shared.names import LOOPBACK_HOSTS

MAX_BODY_BYTES = 16 << 20
FULL_S = 2.0  # Retry-After of a full service
MAX_NUMBER_CHARS = 20  # of a session's number


class EnvironmentsApp:
    """An ASGI application."""

    def __init__(self, sessions: WorldSessions, token: str | None) -> None:
        self._sessions = sessions
        self._token = None if token is None else token.encode()
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, str], Awaitable[None]]] = {
            ("GET", "/api/get_indices"): self._indices,
            ("GET", "/api/list_workers"): self._list,
            ("POST", "/api/start_sample"): self._start,
            ("POST", "/api/interact"): self._interact,
            ("POST", "/api/cancel"): self._cancel,
        }

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive, send)
        try:
            await self._serve(request, scope.get("query_string", b"").decode("latin-1"))
        except HttpRefusal as refusal:
            if not request.is_broken:
                await request.refuse(refusal)

    async def _serve(self, request: HttpRequest, query: str) -> None:
        path = request.path.rstrip("/")
        if path == "/health":
            await request.answer_json(503 if self._sessions.is_draining else 200, self._health())
            return
        self._require_trusted_page(request)
        require_token(request, self._token)
        route = self._routes.get((request.method, path))
        if route is None:
            raise _refusal(404, f"no {request.method} {path}; expected {', '.join(path for _, path in self._routes)}")
        try:
            await route(request, query)
        except ServiceFull as exc:
            raise HttpRefusal(406, {"detail": str(exc)}, retry_after(FULL_S)) from exc
        except Occupied as exc:
            raise _refusal(409, str(exc)) from exc
        except SessionLost as exc:
            raise _refusal(404, str(exc)) from exc
        except TaskNotOffered as exc:
            raise _refusal(422, str(exc)) from exc
        except WorldWrong as exc:
            await request.answer_json(200, _wrong(str(exc)))
        except (WorkerLost, WorldFailed) as exc:
            raise _refusal(500, str(exc)) from exc

    def _require_trusted_page(self, request: HttpRequest) -> None:
        """Without a token: a web page of a foreign origin, or with a name that was made to point here (DNS rebinding), may not
        ask."""
        if self._token is not None:
            return
        origin = request.headers.get("origin")
        if origin is not None and host_name(origin) not in LOOPBACK_HOSTS:
            raise _refusal(403, f"Origin is {origin!r}; expected a page of this machine, or a token")
        host = request.headers.get("host", "localhost")
        if host_name(f"//{host}") not in LOOPBACK_HOSTS:
            raise _refusal(403, f"Host is {host!r}; expected a name of this machine, such as localhost, or a token")

    def _health(self) -> dict[str, Any]:
        sessions = self._sessions
        return {
            "sessions": len(sessions),
            "starting": sessions.starting,
            "capacity": sessions.rules.capacity,
            "workers": {str(worker.pid): len(worker.sessions) for worker in sessions.workers},
            "draining": sessions.is_draining,
            "counts": dict(sessions.counts),
        }

    # ------------------------------------------------------------------ routes

    async def _indices(self, request: HttpRequest, query: str) -> None:
        kind = self._kind(parse_qs(query).get("name", [""])[0])
        await request.answer_json(200, await self._sessions.indices(kind))

    async def _list(self, request: HttpRequest, query: str) -> None:
        rules, sessions = self._sessions.rules, self._sessions
        workers = {
            str(worker.pid): {"status": "running", "capacity": rules.per_worker, "current": len(worker.sessions)}
            for worker in sessions.workers
        }
        await request.answer_json(200, {kind: {"workers": workers} for kind in rules.kinds})

    async def _start(self, request: HttpRequest, query: str) -> None:
        given = await _json_of(request)
        kind = self._kind(given.get("name"))
        task = given.get("custom_task") or {}
        if not isinstance(task, dict):
            raise _refusal(422, f"custom_task is {task!r}; expected an object or null")
        index = given.get("index", 0)
        if index == NO_INDEX and not task:
            raise _refusal(
                422, f"index is {NO_INDEX}; expected a number from 0 on, a text, or the index in custom_task"
            )
        if index == NO_INDEX:
            index = task.pop("index", 0)
        if isinstance(index, bool) or not isinstance(index, int | str):
            raise _refusal(422, f"index is {index!r}; expected a number or a text")
        number, step = await self._sessions.start(kind, index, task)
        if await request.breaks_within(0):  # no client knows the session
            self._sessions.cancel(number)
            return
        await request.answer_json(200, _for_agentrl(step), [(SESSION_HEADER.encode(), str(number).encode())])

    async def _interact(self, request: HttpRequest, query: str) -> None:
        number = _session_of(request)
        replies = (await _json_of(request)).get("messages")
        if not (isinstance(replies, list) and all(isinstance(reply, dict) for reply in replies)):
            raise _refusal(422, "messages is missing; expected a list of assistant messages")
        for k, reply in enumerate(replies):
            _require_calls(f"messages.{k}", reply)
        await request.answer_json(200, _for_agentrl(await self._sessions.interact(number, replies)))

    async def _cancel(self, request: HttpRequest, query: str) -> None:
        number = _session_of(request)
        if not self._sessions.cancel(number):
            raise _refusal(404, f"no session {number}")
        await request.answer_json(200, {"session_id": number})

    def _kind(self, name: Any) -> str:
        if not isinstance(name, str) or name not in self._sessions.rules.kinds:
            raise _refusal(422, f"name is {name!r}; this service has: {', '.join(self._sessions.rules.kinds)}")
        return str(name)


def _for_agentrl(step: Mapping[str, Any]) -> dict[str, Any]:
    return {**step, "metric": step["metrics"]}  # its workers say `metric`, its clients read `metrics`


def _wrong(problem: str) -> dict[str, Any]:
    """The last step of a session whose world returned what is none."""
    step = checked(Step(status=TASK_ERROR, result=problem))
    return {**_for_agentrl(step), FINAL: True, "detail": problem}


def _require_calls(field: str, reply: Mapping[str, Any]) -> None:
    """Worlds read calls without looking whether they are some."""
    calls = reply.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise _refusal(422, f"{field}.tool_calls is {shown(calls)}; expected a list")
    for k, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _refusal(
                422, f"{field}.tool_calls.{k} is {shown(call)}; expected {{'id': …, 'function': {{'name': …}}}}"
            )
    if not isinstance(reply.get("content"), str | list | None):
        raise _refusal(422, f"{field}.content is {shown(reply.get('content'))}; expected text")


def _session_of(request: HttpRequest) -> int:
    value = request.headers.get(SESSION_HEADER, "")
    if not (value.isascii() and value.isdigit() and len(value) <= MAX_NUMBER_CHARS):
        raise _refusal(
            422,
            f"header {SESSION_HEADER} is {value[:MAX_NUMBER_CHARS]!r}; expected the number that start_sample answered",
        )
    return int(value)


async def _json_of(request: HttpRequest) -> dict[str, Any]:
    body = await request.body(MAX_BODY_BYTES)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise _refusal(422, f"the body is not JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise _refusal(422, "the body is not an object")
    return content


def _refusal(status: int, text: str) -> HttpRefusal:
    return HttpRefusal(status, {"detail": text})
