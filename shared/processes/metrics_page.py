"""A process's own figures for Prometheus: what its last heartbeat said, its processor time and its memory.

    metrics_address HOST:PORT ─▶ one thread ─▶ GET /metrics, in Prometheus' text format 0.0.4

Without authentication: numbers alone, no text of any episode, task or setting. One request at a time, each within `TIME_LIMIT_S`.
"""

import logging
import math
import os
import re
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET, AF_INET6, SHUT_RDWR
from typing import Annotated, Any

from pydantic import AfterValidator

from shared.documents.run import Worker
from shared.errors import ConfigError

log = logging.getLogger(__name__)

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIME_LIMIT_S = 5.0
MOST_FIGURES = 2_000
DESCRIPTION = (
    "HOST:PORT at which this process serves its own figures to Prometheus (GET /metrics), without authentication. "
    "None: it does not."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """`name` without the prefix "tandem_"."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def _address(given: str) -> str:
    host_and_port(given)
    return given


def host_and_port(given: str) -> tuple[str, int]:
    """Raises ConfigError."""
    host, colon, port = given.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"metrics_address is {given!r}; expected HOST:PORT, such as 127.0.0.1:9465 or 0.0.0.0:9465")
    return host.strip("[]") or "0.0.0.0", int(port)


Address = Annotated[str, AfterValidator(_address)]


def of_worker(worker: Worker | None) -> Iterator[Figure]:
    """Every number of its statistics; of a table of numbers one for each entry."""
    if worker is None:
        return
    labels = {"kind": worker.kind, "worker": worker.id}
    yield Figure("worker_alarms", len(worker.alarms), labels)
    for name, value in worker.stats.items():
        full = f"{worker.kind}_{_plain(name)}"
        if isinstance(value, Mapping):
            entries = [(str(key), one) for key, one in value.items() if _is_number(one)]
            yield from (Figure(full, float(one), {"worker": worker.id, "of": key}) for key, one in entries)
        elif _is_number(value):
            yield Figure(full, float(value), {"worker": worker.id})


def of_process() -> Iterator[Figure]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Figure("process_cpu_seconds", used.ru_utime + used.ru_stime)
    yield Figure("process_resident_bytes", _resident_bytes())


def as_page(run: str, figures: Iterable[Figure]) -> bytes:
    """Figures of one name stand together, as the format demands."""
    lines: dict[str, list[str]] = {}
    for number, figure in enumerate(figures):
        if number == MOST_FIGURES:
            break
        name = f"tandem_{figure.name}"
        labels = ",".join(f'{key}="{_quoted(value)}"' for key, value in {"run": run, **figure.labels}.items())
        value = _number(figure.value)
        lines.setdefault(name, [f"# TYPE {name} gauge"]).append(f"{name}{{{labels}}} {value}")
    return ("\n".join(line for found in lines.values() for line in found) + "\n").encode()


@contextmanager
def serving(address: str | None, run: str, figures: Callable[[], Iterable[Figure]]) -> Iterator[str | None]:
    """Serve until the end of the block; the URL. Without an address nothing. Raises ConfigError if it is taken."""
    if address is None:
        yield None
        return

    place = host_and_port(address)

    class Handler(BaseHTTPRequestHandler):
        timeout = TIME_LIMIT_S  # of one read

        def setup(self) -> None:
            """Of the whole connection: a client that sends a byte a second would block others, and the end of the process."""
            super().setup()
            self._limit = threading.Timer(TIME_LIMIT_S, self._hang_up)
            self._limit.daemon = True
            self._limit.start()

        def finish(self) -> None:
            self._limit.cancel()
            super().finish()

        def _hang_up(self) -> None:
            with suppress(OSError):  # it has just ended
                self.connection.shutdown(SHUT_RDWR)

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(404, f"expected GET {PATH}")
                return
            body = as_page(run, [*figures(), *of_process()])
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """One line per scrape would hide ours."""

    class Server(HTTPServer):
        address_family = AF_INET6 if ":" in place[0] else AF_INET

        def handle_error(self, *args: Any) -> None:
            """A client that hung up: it asks again."""

    try:
        server = Server(place, Handler)
    except (OSError, UnicodeError) as exc:  # UnicodeError: a name that cannot be a host's
        raise ConfigError(
            f"metrics_address: cannot listen on {address}: {getattr(exc, 'strerror', exc)}; give each process its own"
        ) from exc
    host, port = server.server_address[0], server.server_address[1]
    url = f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}{PATH}"
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    log.info("figures at %s", url)
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _number(value: float) -> str:
    return f"{value:.17g}" if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
