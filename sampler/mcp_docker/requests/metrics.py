"""`/metrics`: the gateway's counts in Prometheus' text format."""

import os
import resource
from collections.abc import Iterator

from sampler.mcp_docker.sessions.call_counts import PREFIX, family
from sampler.mcp_docker.sessions.sessions import Sessions

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def metrics_page(sessions: Sessions) -> bytes:
    pool = sessions.pool
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = [
        *_gauge("sessions", "Open sessions.", len(sessions)),
        *_gauge("sessions_capacity", "Maximum open sessions.", pool.capacity),
        *_gauge("sets_warm", "Sets of tool processes that wait for a session.", pool.warm),
        *_gauge("sets_starting", "Sets of tool processes that are starting.", pool.starting),
        *_gauge("sets_ending", "Sets of tool processes that are ending.", pool.ending),
        *_gauge("calls_in_flight", "Requests to tool servers in flight.", sessions.num_in_flight),
        *_counter("sessions_opened_total", "Sessions that were opened.", sessions.num_opened),
        *family("sessions_ended_total", "counter", "Sessions that ended, by reason.", "reason", sessions.num_ended),
        *_counter("sets_started_total", "Sets of tool processes that were started.", pool.num_started),
        *_counter("set_failures_total", "Sets of tool processes that did not start.", pool.num_failed),
        *_counter("busy_total", "New sessions that were refused as busy.", pool.num_refused),
        *sessions.calls.lines(),
        *_counter("process_cpu_seconds_total", "Processor time of the gateway itself.", used.ru_utime + used.ru_stime),
        *_gauge("process_resident_bytes", "Memory of the gateway itself.", _resident_bytes()),
    ]
    return ("\n".join(lines) + "\n").encode()


def _gauge(name: str, text: str, value: float) -> Iterator[str]:
    yield from _single(name, "gauge", text, value)


def _counter(name: str, text: str, value: float) -> Iterator[str]:
    yield from _single(name, "counter", text, value)


def _single(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    yield f"{PREFIX}{name} {value:.6f}" if isinstance(value, float) else f"{PREFIX}{name} {value}"


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
