"""Fetches pages of allowed hosts: `python -m sampler.mcp_docker.tools.fetch --allow HOST... [--private HOST...]`.

    --allow HOST      also HOST:PORT; *.HOST allows every host below it. Without a port: 80 for http, 443 for https
    --private HOST    an allowed host whose addresses may be private (loopback, a company's network)

Every redirect is checked as the first address was. A name is resolved once, and the connection
goes to the checked address.
"""

import argparse
import http.client
import ipaddress
import re
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from sampler.mcp_docker.tools.serving import (
    BundledServer,
    BundledTool,
    ToolArguments,
    ToolRefusal,
    argument,
    run,
    server_of,
)

MAX_BYTES = 5 * 1024 * 1024
MAX_CHARS = 50_000
MAX_REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE_BYTES = 65_536


class FetchArguments(ToolArguments):
    url: str = argument(description="an http or https address", max_length=4_000)
    first_char: int = argument(0, description="character of the text to begin with", ge=0)
    timeout_s: float = argument(30.0, gt=0, le=120)


class AllowedHosts:
    """Which hosts and ports may be asked, and which of them may have private addresses."""

    def __init__(self, allow: Sequence[str], private: Sequence[str]) -> None:
        self._allow = [host.lower() for host in (*allow, *private)]
        self._private = [host.lower() for host in private]

    def addresses(self, url: SplitResult) -> list[tuple[Any, ...]]:
        """Addresses to connect to, as of `getaddrinfo`. Raises ToolRefusal."""
        host, port = _host(url), _port(url)
        if not _names(self._allow, host, port, _PORTS[url.scheme]):
            raise ToolRefusal(f"{host}:{port} is not on the list of allowed hosts: {', '.join(self._allow) or 'none'}")
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise ToolRefusal(f"{host}: {exc}") from exc
        if not _names(self._private, host, port, _PORTS[url.scheme]):
            for *_, address in resolved:
                if not _is_public(str(address[0])):
                    raise ToolRefusal(f"{host} has the private address {address[0]}, which is not fetched from")
        return resolved


def _names(hosts: Sequence[str], host: str, port: int, usual: int) -> bool:
    for listed in hosts:
        name, _, its_port = listed.partition(":") if listed.count(":") == 1 else (listed, "", "")
        below = name.startswith("*.") and host.endswith(name[1:])
        if (below or name == host) and port == (int(its_port) if its_port else usual):
            return True
    return False


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return _is_public(str(inner))
        if ip in ipaddress.ip_network("64:ff9b::/96"):  # the IPv4 address behind NAT64
            return _is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


class Fetcher:
    def __init__(self, hosts: AllowedHosts) -> None:
        self._hosts = hosts

    def fetch(self, arguments: FetchArguments) -> str:
        end = time.monotonic() + arguments.timeout_s
        url = arguments.url
        for _ in range(MAX_REDIRECTS + 1):
            try:
                status, kind, body, target = self._once(_split(url), end)
            except (OSError, http.client.HTTPException, ValueError) as exc:
                raise ToolRefusal(f"{url}: {exc or type(exc).__name__}") from exc
            if target is None:
                return _shown(url, status, kind, body, arguments.first_char)
            url = urljoin(url, target)
        raise ToolRefusal(f"{arguments.url}: more than {MAX_REDIRECTS} redirects")

    def _once(self, url: SplitResult, end: float) -> tuple[int, str, bytes, str | None]:
        connection = _connected(url, self._hosts.addresses(url), end)
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            headers = {"User-Agent": "tandem-fetch", "Accept-Encoding": "identity", "Connection": "close"}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            target = response.getheader("Location") if response.status in _REDIRECTS else None
            body = b"" if target else _body(response, connection, end)
            return response.status, response.getheader("Content-Type", ""), body, target
        finally:
            connection.close()


def _split(url: str) -> SplitResult:
    if re.search(r"[\x00-\x20\x7f]", url):
        raise ToolRefusal("an address cannot have spaces or control characters")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ToolRefusal(f"{url[:200]}: expected an http or https address")
    if parts.username is not None:
        raise ToolRefusal("an address with a user's name is not fetched")
    return parts


def _host(url: SplitResult) -> str:
    return (url.hostname or "").rstrip(".").lower()


def _port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]


def _connected(url: SplitResult, addresses: list[tuple[Any, ...]], end: float) -> http.client.HTTPConnection:
    """To a checked address, under the name of the host."""
    problem: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in addresses:
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(_remaining_s(end))
            opened.connect(address)
            if url.scheme == "https":
                opened = ssl.create_default_context().wrap_socket(opened, server_hostname=_host(url))
        except OSError as exc:
            opened.close()
            problem = exc
            continue
        connection = http.client.HTTPConnection(_host(url), _port(url))
        connection.default_port = _PORTS[url.scheme]
        connection.sock = opened
        return connection
    raise problem


def _body(response: http.client.HTTPResponse, connection: http.client.HTTPConnection, end: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size <= MAX_BYTES:
        if connection.sock is not None:
            connection.sock.settimeout(_remaining_s(end))
        piece = response.read1(_PIECE_BYTES)
        if not piece:
            break
        parts.append(piece)
        size += len(piece)
    return b"".join(parts)[:MAX_BYTES]


def _remaining_s(end: float) -> float:
    remaining = end - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


class _Text(HTMLParser):
    """The words of a page, without scripts and styles."""

    _HIDDEN = ("script", "style", "template", "noscript", "svg")
    _BREAKS = ("p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "pre", "table", "section", "title")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self._HIDDEN
        if tag in self._BREAKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in self._HIDDEN))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def _shown(url: str, status: int, kind: str, body: bytes, first: int) -> str:
    charset = re.search(r"charset=\"?([\w-]+)", kind)
    try:
        text = body.decode(charset[1] if charset else "utf-8", "replace")
    except LookupError:
        text = body.decode("utf-8", "replace")
    if "html" in kind:
        parser = _Text()
        parser.feed(text)
        text = re.sub(r"\n\s*\n+", "\n\n", re.sub(r"[ \t]+", " ", "".join(parser.parts))).strip()
    part = text[first : first + MAX_CHARS]
    rest = f"\n[characters {first} to {first + len(part)} of {len(text)}]" if len(part) < len(text) else ""
    return f"[{url}: status {status}, {kind or 'no type'}]\n{part}{rest}"


def tool_server(arguments: Sequence[str]) -> BundledServer:
    parser = argparse.ArgumentParser(prog="fetch", description=__doc__)
    parser.add_argument("--allow", nargs="*", default=[])
    parser.add_argument("--private", nargs="*", default=[])
    chosen = parser.parse_args(list(arguments))
    fetcher = Fetcher(AllowedHosts(chosen.allow, chosen.private))
    return server_of("fetch", [BundledTool("fetch", "Fetches a page as text.", FetchArguments, fetcher.fetch)])


if __name__ == "__main__":
    run(tool_server(sys.argv[1:]))
