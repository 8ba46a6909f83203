"""The gateway over HTTP: who may ask, and what answers which path.

/mcp        MCP's streamable HTTP: `endpoint`
/health     whether it serves, and why not: no token needed, nothing secret told
"""

import logging
from collections.abc import Collection

from sampler.mcp_docker.requests.endpoint import McpEndpoint
from sampler.mcp_docker.requests.health import health_of
from sampler.mcp_docker.requests.metrics import CONTENT_TYPE as METRICS_TYPE
from sampler.mcp_docker.requests.metrics import metrics_page
from sampler.mcp_docker.requests.older_api import OlderApi
from sampler.mcp_docker.sessions.sessions import Sessions
from shared.http.asgi import Event, HttpRefusal, HttpRequest, Receive, Send, host_name, require_token
from shared.names import LOOPBACK_HOSTS
from shared.sandbox import IsolationLevel

log = logging.getLogger(__name__)


class GatewayApp:
    """An ASGI application. `is_local`: it listens on this machine's own address only."""

    # 7 parameters: what the process opened, and three settings
    def __init__(
        self,
        endpoint: McpEndpoint,
        older: OlderApi,
        sessions: Sessions,
        level: IsolationLevel,
        *,
        token: str | None,
        origins: Collection[str],
        is_local: bool,
    ) -> None:
        self._endpoint, self._older = endpoint, older
        self._sessions, self._level = sessions, level
        self._token = None if token is None else token.encode()
        self._origins, self._is_local = frozenset(origins), is_local
        self.is_draining = False

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive, send)
        try:
            await self._serve(request)
        except HttpRefusal as refusal:
            if not request.is_broken:
                await request.refuse(refusal)

    async def _serve(self, request: HttpRequest) -> None:
        path = request.path.rstrip("/")
        if path == "/health":
            status, report = health_of(self._sessions, self._level, self.is_draining)
            await request.answer_json(status, report)
            return
        self._require_trusted_page(request)
        require_token(request, self._token)
        if path == "/mcp":
            await self._endpoint.serve(request)
        elif path.startswith("/mcpapi/"):
            await self._older.serve(request, request.raw_parts[1:])
        elif path == "/metrics":
            await request.answer(200, metrics_page(self._sessions), [(b"content-type", METRICS_TYPE)])
        else:
            raise HttpRefusal(404, "expected /mcp, /mcpapi, /health or /metrics")

    def _require_trusted_page(self, request: HttpRequest) -> None:
        """A web page of a foreign origin, or with a name that was made to point here (DNS rebinding), may not ask."""
        origin = request.headers.get("origin")
        if origin is not None and not self._is_allowed(origin):
            raise HttpRefusal(403, "requests of this origin are not allowed: see allowed_origins")
        if self._is_local and host_name(f"//{request.headers.get('host', 'localhost')}") not in LOOPBACK_HOSTS:
            raise HttpRefusal(403, "the Host header does not name this machine")

    def _is_allowed(self, origin: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        return self._is_local and host_name(origin) in LOOPBACK_HOSTS
