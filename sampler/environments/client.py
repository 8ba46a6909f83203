"""The client of AgentRL's controller protocol: sessions are started, asked, renewed, ended (docs/bring/environments.md).

Promises: every request has a time-out from its beginning to its end, and every answer's body a bound; a failure is an error and
never a reward; a start that is refused for want of room (406, 429, 503) is `EnvironmentBusy`; a session that was started is
cancelled unless the environment ended it, also if its first step cannot be read.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from sampler.core.errors import EnvironmentBusy, EnvironmentFailed, EnvironmentWrong
from sampler.environments.answers import MAX_TOLD_CHARS, StepReply, step_of
from sampler.environments.environment import FINAL, NO_INDEX, SESSION_HEADER
from shared.errors import ConfigError
from shared.http.retry_after import retry_after_s
from shared.outside_text import clipped, text_of

log = logging.getLogger(__name__)

BUSY = frozenset({406, 429, 503})
START = "/start_sample"
TASK_REFUSED = 422  # to START: the task itself is wrong
MAX_ANSWER_BYTES = 16 << 20
CANCEL_S = 10.0
CONNECT_S = 10.0


class Unreachable(EnvironmentFailed):
    """No connection, or it broke: the service is away."""


class EnvironmentClient:
    """One per process. `step_s`: time-out of a request."""

    def __init__(
        self, start_s: float, step_s: float, max_connections: int, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._start_s, self._step_s = start_s, step_s
        self._max_connections = max_connections
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def start(
        self, url: str, name: str, index: int | str, custom_task: Mapping[str, Any] | None, token: str | None = None
    ) -> tuple[str, StepReply]:
        """The session's id and first step. Raises EnvironmentBusy, EnvironmentFailed, and ConfigError for a wrong task."""
        task = dict(custom_task) if custom_task else None
        if task is not None:  # as AgentRL's own client has it
            task["index"], index = index, NO_INDEX
        body = {"name": name, "index": index, "custom_task": task}
        begun: list[str] = []
        try:
            answer = await self._post(f"{url}{START}", body, self._start_s, token=token, begun=begun.append)
            if not begun:
                raise EnvironmentFailed(f"{url}{START} answered without a header {SESSION_HEADER} that can be sent")
            return begun[0], step_of(answer, url)
        except BaseException:  # cancelled too: a session that was begun must not stay open
            if begun:
                await self.end(url, begun[0], token)
            raise

    async def interact(
        self, url: str, session: str, messages: Sequence[Mapping[str, Any]], token: str | None = None
    ) -> StepReply:
        """Raises EnvironmentFailed."""
        body = {"messages": list(messages)}
        answer = await self._post(f"{url}/interact", body, self._step_s, session=session, token=token)
        return step_of(answer, url)

    async def renew(self, url: str, session: str, token: str | None = None) -> None:
        """An empty message: the session's lease begins anew. Raises EnvironmentFailed."""
        body = {"messages": [{"role": "assistant", "content": ""}]}
        await self._post(f"{url}/interact", body, self._step_s, session=session, token=token)

    async def cancel(self, url: str, session: str, token: str | None = None) -> None:
        """End the session, if it is there. Says in the log what could not be done: its lease ends it then."""
        try:
            await self._post(f"{url}/cancel", None, CANCEL_S, session=session, token=token)
        except (EnvironmentFailed, ConfigError) as exc:
            log.info("session %s of %s was not cancelled: %s", session, url, exc)

    async def end(self, url: str, session: str, token: str | None = None) -> None:
        """The same, also if the caller is cancelled: the world would hold its place until its lease ends."""
        telling = asyncio.create_task(self.cancel(url, session, token))
        try:
            await asyncio.shield(telling)
        except asyncio.CancelledError:
            await asyncio.wait({telling}, timeout=CANCEL_S)
            raise

    async def _post(
        self,
        url: str,
        body: Any,
        timeout_s: float,
        *,
        session: str | None = None,
        token: str | None = None,
        begun: Callable[[str], None] | None = None,
    ) -> Any:
        """The answer's JSON. `begun` is told the session of its header, before the body is read."""
        headers = {"accept-encoding": "identity"}  # a compressed answer may expand without bound
        if session is not None:
            headers[SESSION_HEADER] = session
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            request = self._client().build_request("POST", url, json=body, headers=headers, timeout=_times(timeout_s))
            async with asyncio.timeout(timeout_s):  # httpx's own begins anew with every part of the answer
                response = await self._client().send(request, stream=True)
                try:
                    if begun is not None and (session_id := _session_of(response)) is not None:
                        begun(session_id)
                    content = await _bounded(response)
                finally:
                    await response.aclose()
        except TimeoutError as exc:
            raise EnvironmentFailed(f"POST {url}: no whole answer within {timeout_s:g} s") from exc
        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout) as exc:
            raise Unreachable(f"POST {url}: {type(exc).__name__} {exc}".rstrip()) from exc
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as exc:
            raise EnvironmentFailed(f"POST {url}: {type(exc).__name__} {exc}".rstrip()) from exc
        if response.status_code != httpx.codes.OK:
            raise _refused(url, response, content)
        try:
            answered = json.loads(content)
        except (ValueError, RecursionError) as exc:
            raise EnvironmentFailed(f"POST {url}: the answer is not JSON: {_shown(content)}") from exc
        if (
            isinstance(answered, dict) and answered.get(FINAL) is True
        ):  # of our service: the world returned what is no step
            raise EnvironmentWrong(f"POST {url}: {clipped(str(answered.get('result')), MAX_TOLD_CHARS)}")
        return answered

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            limits = httpx.Limits(max_connections=self._max_connections, max_keepalive_connections=256)
            self._http = httpx.AsyncClient(limits=limits, transport=self._transport, trust_env=False)
        return self._http


def _times(timeout_s: float) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=CONNECT_S)


def _session_of(response: httpx.Response) -> str | None:
    """A header of other characters could not be sent back."""
    value = response.headers.get(SESSION_HEADER, "")
    return value if value and value.isascii() and value.isprintable() else None


async def _bounded(response: httpx.Response) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    async for part in response.aiter_bytes(1 << 16):
        num_bytes += len(part)
        if num_bytes > MAX_ANSWER_BYTES:
            raise EnvironmentFailed(f"{response.url}: the answer has more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _refused(url: str, response: httpx.Response, content: bytes) -> Exception:
    message = f"POST {url}: HTTP {response.status_code}: {_shown(content)}"
    if response.status_code in BUSY and url.endswith(START):  # a step that is refused loses its episode
        return EnvironmentBusy(message, retry_after_s(response.headers))
    if response.status_code == TASK_REFUSED and url.endswith(START):
        return ConfigError(message)
    return EnvironmentFailed(message)


def _shown(content: bytes) -> str:
    return clipped(" ".join(text_of(content[:4000]).split()), MAX_TOLD_CHARS)
