"""The viewer below a path of another server: `https://lab.example/tandem/…`, by a reverse proxy.

The path is a setting, or the proxy's header `X-Forwarded-Prefix`. A proxy may pass requests with the path or without it. Every
link of a page begins with `root_of(request)`; routes are without it (ASGI's `root_path`).
"""

import re

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-forwarded-prefix"
MAX_CHARS = 200
PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+)+")  # no `//host`, no step upwards, nothing to escape


def is_sub_path(path: str) -> bool:
    return len(path) <= MAX_CHARS and PATH.fullmatch(path) is not None


def root_of(request: Request) -> str:
    """What every path of a link begins with; empty without a proxy's path."""
    scope = request.scope
    return str(scope.get("app_root_path", scope.get("root_path", "")))


def route_of(scope: Scope) -> str:
    """The path without what it begins with."""
    return str(scope["path"]).removeprefix(str(scope.get("root_path", "")))


class BelowSubPath:
    """ASGI layer: sets the scope's `root_path`, and has its `path` begin with it. A header that is no path is ignored."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "").partition(",")[0].strip().rstrip("/")
        root = given if is_sub_path(given) else self._root_path
        if root:
            path: str = scope["path"]
            within = path == root or path.startswith(f"{root}/")
            scope = {**scope, "root_path": root, "path": path if within else root + path}
        await self._app(scope, receive, send)
