"""The fetch tool of MCP-Docker: allowed hosts, redirects, private addresses."""

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from sampler.mcp_docker.tools import fetch
from sampler.mcp_docker.tools.serving import ToolRefusal

pytestmark = pytest.mark.slow


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/page": (200, "text/html", b"<title>T</title><script>hidden()</script><p>Hello <b>you</b></p>"),
            "/big": (200, "text/plain", b"x" * (6 * 1024 * 1024)),
            "/out": (302, "http://127.0.0.2:1/secret", b""),
            "/named": (302, "http://other.test/", b""),
            "/file": (302, "file:///etc/passwd", b""),
            "/loop": (302, "/loop", b""),
            "/hop": (302, "/page", b""),
        }
        status, kind, body = answers[self.path]
        self.send_response(status)
        self.send_header("Location" if status == 302 else "Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_fetch_reads_allowed_hosts_and_checks_every_redirect(pages: int) -> None:
    fetcher = fetch.Fetcher(fetch.AllowedHosts([], [f"127.0.0.1:{pages}"]))
    base = f"http://127.0.0.1:{pages}"
    assert fetcher.fetch(fetch.FetchArguments(url=f"{base}/hop")).endswith("text/html]\nT\nHello you")
    big = fetcher.fetch(fetch.FetchArguments(url=f"{base}/big"))
    assert big.endswith(f"[characters 0 to {fetch.MAX_CHARS} of {fetch.MAX_BYTES}]")
    for path, reason in (
        ("/out", "127.0.0.2:1 is not on the list"),
        ("/named", "other.test:80 is not on the list"),
        ("/file", "expected an http or https address"),
        ("/loop", "more than 5 redirects"),
    ):
        with pytest.raises(ToolRefusal, match=reason):
            fetcher.fetch(fetch.FetchArguments(url=base + path))


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/", "http://127.0.0.1/", "http://127.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/",
        "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/",
        "http://0.0.0.0/", "http://localhost./", "http://[fe80::1]/", "http://100.64.0.1/", "http://224.0.0.1/",
    ],
)  # fmt: skip
def test_a_private_address_is_refused_even_if_its_name_is_allowed(url: str) -> None:
    hosts = fetch.AllowedHosts([urlsplit(url).hostname.rstrip(".")], [])  # type: ignore[union-attr]  # it is there
    with pytest.raises(ToolRefusal, match=r"private address|Name or service|not known|is not on the list"):
        fetch.Fetcher(hosts).fetch(fetch.FetchArguments(url=url, timeout_s=5))


def test_a_name_that_changes_its_address_after_the_check_is_not_asked_again(
    pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = socket.getaddrinfo

    def changing(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        return real("93.184.216.34" if len(asked) == 1 else "127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    hosts = fetch.AllowedHosts([f"rebinding.test:{pages}"], [])
    found = hosts.addresses(urlsplit(f"http://rebinding.test:{pages}/page"))
    assert [address[-1][0] for address in found] == ["93.184.216.34"]
    assert asked == ["rebinding.test"], "the connection goes to this address, not to the name"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.test/",
        "file:///etc/passwd",
        "http://",
        "http://a.test\r\nHost: b/",
        "http://user@a.test/",
        "gopher://a.test",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ToolRefusal):
        fetch.Fetcher(fetch.AllowedHosts(["a.test"], [])).fetch(fetch.FetchArguments(url=url))
