"""A guard for `box.py http --oauth`, and the authorization server that gives tokens to the client `me`.

GET /tokens is how many were given; GET /revoke makes the last one worthless.
"""

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CLIENT, SECRET = "me", "s3cret-word"


class OAuth:
    def __init__(self, app: Any) -> None:
        self.app = app
        self.num_tokens = 0
        self.valid = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = await self._answer(request, str(request.base_url).rstrip("/"))
        await (answer or self.app)(scope, receive, send)

    async def _answer(self, request: Request, base: str) -> Response | None:
        """None: the request is for the tools, and has the token."""
        match request.url.path:
            case "/.well-known/oauth-protected-resource/mcp":
                return JSONResponse({"resource": f"{base}/mcp", "authorization_servers": [base]})
            case "/.well-known/oauth-authorization-server":
                urls = {"token_endpoint": f"{base}/token", "authorization_endpoint": f"{base}/authorize"}
                methods = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
                return JSONResponse({"issuer": base, "response_types_supported": ["code"], **urls, **methods})
            case "/token":
                return self._token(request)
            case "/tokens":
                return JSONResponse(self.num_tokens)
            case "/revoke":
                self.valid = ""
                return Response(status_code=204)
            case "/mcp":
                told = request.headers.get("authorization")
                return None if self.valid and told == f"Bearer {self.valid}" else Response(status_code=401)
        return Response(status_code=404)

    def _token(self, request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if given != "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode():
            said = base64.b64decode(given.removeprefix("Basic ")).decode()
            return JSONResponse({"error": "invalid_client", "error_description": f"no {said}"}, status_code=401)
        self.num_tokens += 1
        self.valid = f"token-{self.num_tokens}"
        return JSONResponse({"access_token": self.valid, "token_type": "Bearer", "expires_in": 3600})
