"""Engines that failed lately: for a while no request goes to them, and each failure in a row doubles it."""

import time
from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`until`: by the monotonic clock. `failures`: in a row; `span_s`: how long the last one counts."""

    until: float
    failures: int
    span_s: float


class Suspects:
    """By URL. A failure counts for `first_s`, the next one for twice as long, up to `most_s`; an answer ends the row."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._known: dict[str, Suspicion] = {}

    def add(self, url: str) -> Suspicion:
        """After a failure."""
        failures = self._known[url].failures + 1 if url in self._known else 1
        span_s = min(self._most_s, self._first_s * 2.0 ** (failures - 1))
        self._known[url] = Suspicion(time.monotonic() + span_s, failures, span_s)
        return self._known[url]

    def clear(self, url: str) -> None:
        self._known.pop(url, None)

    def keep(self, urls: Set[str]) -> None:
        """Forget all others."""
        self._known = {url: suspicion for url, suspicion in self._known.items() if url in urls}

    def __contains__(self, url: str) -> bool:
        return url in self._known and self._known[url].until > time.monotonic()
