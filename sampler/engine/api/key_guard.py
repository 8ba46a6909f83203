"""Requires the local engine's API key as SGLang does: on all routes except /health."""

import secrets

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KeyGuard:
    """An ASGI class, since a function over request and response would hide a client's disconnection."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if scope["type"] != "http" or self._may_pass(Request(scope)) else _UNAUTHORIZED
        await app(scope, receive, send)

    def _may_pass(self, request: Request) -> bool:
        shown = request.headers.get("authorization", "").encode()
        return request.url.path.startswith("/health") or secrets.compare_digest(shown, self._expected)


_UNAUTHORIZED = JSONResponse({"error": "Unauthorized"}, 401)
