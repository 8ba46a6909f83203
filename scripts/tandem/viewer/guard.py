"""Who may ask the viewer, what may be written, and what a browser may do with an answer.

Without a token, only a page of this machine may ask: another name in the Host header is a web page whose name was made to point
here (DNS rebinding). With a token every request needs it, as bearer token or as the password of basic authentication, and any
Host will do: a browser gives a page with another name no token of ours.
"""

import base64
import binascii
import hmac
import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.names import LOOPBACK_HOSTS
from tandem.viewer.sub_path import route_of

METHODS = ("GET", "HEAD")
FORMS = re.compile(r"/runs/[^/]+/(notes|views)(/remove)?")  # all that a person may write
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with `no-referrer`, the viewer's own forms would have the origin "null"
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """ASGI layer around the viewer."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, told)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        is_form = scope["method"] == "POST" and FORMS.fullmatch(route_of(scope)) is not None
        if scope["method"] not in METHODS and not is_form:
            return PlainTextResponse(
                "the viewer only reads: expected GET or HEAD\n", 405, {"allow": ", ".join(METHODS)}
            )
        if is_form and not _is_own(headers):
            return PlainTextResponse("a form of another site: expected one of the viewer's own pages\n", 403)
        if self._token is None:
            host = headers.get("host", "")
            if _host_name(host) not in LOOPBACK_HOSTS:
                text = f"Host is {host[:200]!r}; expected a name of this machine, such as localhost, or a token\n"
                return PlainTextResponse(text, 403)
        elif not any(hmac.compare_digest(given.encode(), self._token.encode()) for given in _given(headers)):
            return PlainTextResponse(
                "a token is needed: as bearer token, or as password of any user\n",
                401,
                {"www-authenticate": 'Basic realm="Tandem viewer", charset="UTF-8"'},
            )
        return None


def _is_own(headers: Headers) -> bool:
    """Whether a form comes from a page of this viewer (no forgery by another site), or from no browser."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _given(headers: Headers) -> list[str]:
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return [value.strip()]
    if kind.lower() != "basic":
        return []
    try:
        return [base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")[2]]
    except (binascii.Error, UnicodeDecodeError):
        return []
