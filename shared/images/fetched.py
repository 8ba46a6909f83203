"""Images of http(s) URLs, from hosts that the caller names: a line of a task file must not choose whom this machine reaches."""

import http.client
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from shared.errors import DataError
from shared.images.bounds import ImageBounds
from shared.outgoing import opener_for, through_proxy
from shared.redaction import shown

SOCKET_S = 30.0  # of one operation
FETCHED_S = 120.0
PART_BYTES = 1 << 18


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection would lead to a host that was not named: it is an error like any other status."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


def is_web_address(url: str) -> bool:
    return url[:8].lower().startswith(("http://", "https://"))


def fetched(url: str, where: str, bounds: ImageBounds) -> bytes:
    """At most `bounds.max_bytes`. Raises DataError for another host, a redirection, and a failure of the request."""
    _check_host(url, where, bounds)
    end, data = time.monotonic() + FETCHED_S, bytearray()
    try:
        with opener_for(url, _NoRedirect()).open(url, timeout=SOCKET_S) as response:
            while part := response.read1(PART_BYTES):
                data += part
                if len(data) > bounds.max_bytes:
                    raise DataError(f"{where}: more than {bounds.max_bytes:,} bytes at {shown(url)}")
                if time.monotonic() > end:
                    raise DataError(f"{where}: not received within {FETCHED_S:g} s from {shown(url)}")
            expected = response.headers.get("Content-Length", "")
    except (OSError, http.client.HTTPException, ValueError) as exc:  # OSError: URLError and HTTPError too
        if isinstance(exc, urllib.error.HTTPError):
            exc.close()  # it has the connection
        raise DataError(f"{where}: {shown(url)} cannot be fetched: {exc}{through_proxy(url)}") from exc
    if expected.isascii() and expected.isdigit() and int(expected) != len(data):
        raise DataError(f"{where}: {len(data):,} of {expected} bytes received from {shown(url)}")
    return bytes(data)


def _check_host(url: str, where: str, bounds: ImageBounds) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as exc:
        raise DataError(f"{where}: no URL: {exc}") from exc
    if "@" in parts.netloc or "\\" in url or any(c <= " " for c in url):
        raise DataError(f"{where}: a URL with a user name, a backslash or a space; expected http(s)://HOST/...")
    if host not in bounds.image_hosts:
        allowed = ", ".join(bounds.image_hosts) or "none"
        raise DataError(f"{where}: an image of host {host[:100]!r}; `image_hosts` allows {allowed}")
