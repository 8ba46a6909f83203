"""A process's own figures for Prometheus: what its last heartbeat said, its processor time and its memory.

    metrics_address HOST:PORT ─▶ one thread ─▶ GET /metrics, in Prometheus' text format 0.0.4

Without authentication: numbers alone, no text of any episode, task or setting. Each request within `TIME_LIMIT_S`.
"""

import logging
import math
import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated

from pydantic import AfterValidator

from shared.documents.run import Worker
from shared.errors import ConfigError
from shared.http.listening import in_url, listening_socket
from shared.http.pages import PlainPage, serving_thread
from shared.names import bare_host

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
    return bare_host(host) or "0.0.0.0", int(port)


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
    return ("\n".join(line for family in lines.values() for line in family) + "\n").encode()


@contextmanager
def serving(address: str | None, run: str, figures: Callable[[], Iterable[Figure]]) -> Iterator[str | None]:
    """Serve until the end of the block; the URL. Without an address nothing. Raises ConfigError if it is taken."""
    if address is None:
        yield None
        return
    host, port = host_and_port(address)
    listener = listening_socket(host, port, "metrics_address (each process needs one of its own)")

    async def page(path: str) -> PlainPage:
        if path != PATH:
            return PlainPage(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"expected GET {PATH}\n")
        return PlainPage(HTTPStatus.OK, CONTENT_TYPE, as_page(run, [*figures(), *of_process()]).decode())

    url = f"http://{in_url(listener.getsockname()[0])}:{listener.getsockname()[1]}{PATH}"
    with serving_thread(listener, page, TIME_LIMIT_S, "metrics"):
        log.info("figures at %s", url)
        yield url


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
