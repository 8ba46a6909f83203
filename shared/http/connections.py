"""What a server grants its clients: how many connections, and how long it waits for a client's bytes.

Every server admits connections here. Half-sent requests cost their sender nothing. So where there is no room for a new
connection, one that waits for its client's bytes is closed: the one that has waited longest. A connection whose request is being
answered is never closed for others; where all are such, `RESERVE` more are accepted for requests for /health alone.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Protocol

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 10_000
RESERVE = 16
BACKLOG = 2048  # connections that wait to be accepted
LOG_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`connections`, `per_address`: None: what the limit of open files allows, and half of that; this machine's own addresses
    have no bound of theirs, since a proxy on it brings everybody's requests. `head_s`: from the first byte of a request to the
    end of its head, and from the connection to its first byte. `body_s`: without `body_bytes_per_s` on average. `send_s`: a
    client takes nothing of its response."""

    connections: int | None = None
    per_address: int | None = None
    head_s: float = 30.0
    body_s: float = 60.0
    body_bytes_per_s: int = 16 * 1024
    unread_s: float = 10.0  # the rest of a body whose request is answered already
    send_s: float = 300.0


class ConnectionPlace(Enum):
    OPEN = "open"
    SPARE = "for requests for /health"
    NONE = "none"


class ClientConnection(Protocol):
    def hang_up(self) -> None:
        """Close the connection at once."""


class Connections:
    """The open connections of one server. `num_files`: that its process may have open."""

    def __init__(self, limits: ConnectionLimits, num_files: int) -> None:
        share = max(2 * RESERVE, num_files // 2)  # the rest: what answering takes, such as connections to engines
        self.most = min(limits.connections or MOST_CONNECTIONS, share)
        self.per_address = limits.per_address or max(1, self.most // 2)
        self.backlog = max(RESERVE, min(BACKLOG, num_files // 8))  # an event loop accepts all that wait at once
        self.num_refused = 0
        self._address_of: dict[ClientConnection, str] = {}
        self._by_address: Counter[str] = Counter()
        self._waiting: dict[ClientConnection, None] = {}  # for their clients, the longest first
        self._logged_at = -LOG_EVERY_S

    def __len__(self) -> int:
        return len(self._address_of)

    def admit(self, connection: ClientConnection, address: str) -> ConnectionPlace:
        """`address`: the client's IP address; empty: it has none. The connection waits for its client's bytes."""
        bounded = address if address and not _is_this_machine(address) else ""
        if bounded and self._by_address[bounded] >= self.per_address and not self._close_one_of(bounded):
            self._log_refused(f"{self.per_address} of them of {bounded}")
            return ConnectionPlace.NONE
        if len(self) >= self.most:
            self._close_one()
        if len(self) >= self.most + RESERVE:
            self._log_refused(f"all of them: {self.most}")
            return ConnectionPlace.NONE
        place = ConnectionPlace.OPEN if len(self) < self.most else ConnectionPlace.SPARE
        self._address_of[connection] = bounded
        self._by_address[bounded] += 1
        self._waiting[connection] = None
        return place

    def waits(self, connection: ClientConnection) -> None:
        """From now on, for its client's bytes."""
        if connection in self._address_of:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def serves(self, connection: ClientConnection) -> None:
        """It has a whole request."""
        self._waiting.pop(connection, None)

    def closed(self, connection: ClientConnection) -> None:
        """It is closed. May be called again."""
        self._waiting.pop(connection, None)
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _close_one(self) -> None:
        longest = next(iter(self._waiting), None)
        if longest is not None:
            self._close(longest)

    def _close_one_of(self, address: str) -> bool:
        longest = next((one for one in self._waiting if self._address_of[one] == address), None)
        if longest is not None:
            self._close(longest)
        return longest is not None

    def _close(self, connection: ClientConnection) -> None:
        self.closed(connection)
        connection.hang_up()

    def _log_refused(self, in_use: str) -> None:
        self.num_refused += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.warning(
                "a connection was refused: its server's connections are in use (%s), and requests run on each; refused=%d; "
                "expected fewer clients, a higher limit of open files (ulimit -Hn), or one more server",
                in_use,
                self.num_refused,
            )


def _is_this_machine(address: str) -> bool:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
