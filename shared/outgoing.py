"""Requests of ours to an address that a person gave: loopback is reached directly, and a proxy that stands between is named.

The variables `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in either case, are those of every HTTP client.
"""

import ipaddress
import urllib.request
from collections.abc import MutableMapping
from urllib.parse import urlsplit

from shared.redaction import shown

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = "no_proxy"


def loopback_goes_direct(environment: MutableMapping[str, str]) -> None:
    """Where a proxy is set: name loopback among its exceptions, for every client of this process and of its children."""
    if not any(environment.get(form) for name in PROXIES for form in (name, name.upper())):
        return
    given = environment.get(EXCEPTIONS, environment.get(EXCEPTIONS.upper(), ""))
    names = [name.strip() for name in given.split(",") if name.strip()]
    if "*" not in names:
        names += [name for name in LOOPBACK if name not in names]
    environment[EXCEPTIONS] = environment[EXCEPTIONS.upper()] = ",".join(names)


def opener_for(url: str, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Of `urllib`, with the proxies of the environment, of which loopback needs none."""
    direct = [urllib.request.ProxyHandler({})] if is_loopback_url(url) else []
    return urllib.request.build_opener(*direct, *handlers)


def through_proxy(url: str) -> str:
    """What to add to a message about a failed request: the proxy that it went through; empty without one."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None or is_loopback_url(url) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return ""
    return f" (through the proxy {shown(proxy)} of {parts.scheme}_proxy; no_proxy={parts.hostname} reaches it directly)"


def is_loopback_url(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
