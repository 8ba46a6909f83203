"""The listening socket of every server: IPv4 or IPv6, with or without brackets; a place that cannot be had is one sentence."""

import errno
import os
import socket

from shared.errors import ConfigError
from shared.http.connections import BACKLOG
from shared.names import bare_host

REASONS = {
    errno.EADDRINUSE: "the port is taken by another program; expected a free one, or 0 (any)",
    errno.EACCES: "this user may not; expected a port from 1024 on",
    errno.EADDRNOTAVAIL: "this machine has no such address; expected one of its own, 127.0.0.1, ::1, or 0.0.0.0 (all)",
}


def listening_socket(host: str, port: int, setting: str, backlog: int = BACKLOG) -> socket.socket:
    """`setting`: what names the place, for the message. Raises ConfigError."""
    where = f"{setting}: cannot listen on {in_url(host)}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(bare_host(host), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except (socket.gaierror, UnicodeError) as exc:  # UnicodeError: a name that cannot be a host's
        problem = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"{where}: {problem}; expected an address of this machine, such as 127.0.0.1 or ::1") from exc
    except OSError as exc:
        number = exc.errno or 0
        raise ConfigError(f"{where}: {REASONS.get(number) or os.strerror(number)}") from exc


def in_url(host: str) -> str:
    """A host as a URL has it: an IPv6 address in brackets."""
    host = bare_host(host)
    return f"[{host}]" if ":" in host else host


def reachable(host: str) -> str:
    """As a URL has it, the address for clients of a server that listens at `host`: of one that listens on all, this machine's
    name."""
    return socket.gethostname() if bare_host(host) in ("0.0.0.0", "::", "") else in_url(host)
