"""How many episodes this process plays at once: additive increase, multiplicative decrease on the engines' load reports.

    free places, empty queue        ─▶ grow by half of the places (the others are for other processes), at most double
    full, no overload               ─▶ grow by one
    queue, KV cache or latency high ─▶ shrink by the excess share, between 5 and 50 %

Promise: pure; the same reports give the same numbers. Each decision needs a new report, and waits for the last decision's
effect: the limit grows only while it is fully used, and shrinks again only after the episodes beyond the last cut have
ended. The queue at an engine stays about `queue_slack` of its running requests.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

FIRST = 8  # the initial limit, until the first report
LEAST_CUT, LARGEST_CUT = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The summed reports of a policy's engines; `stamp` changes with every report.

    `token_usage`: share of the KV cache in use at the fullest engine. `token_latency_s`: seconds per output token of our own
    requests since the last report; None: none has ended.
    """

    stamp: Hashable
    running: int
    waiting: int
    capacity: int
    token_usage: float = 0.0
    token_latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class Comfort:
    """Where overload begins. A full batch needs a few times as long per token as a single request: that is not overload yet."""

    queue_slack: float = 0.25  # waiting requests per running request; they fill the places that become free
    token_usage: float = 0.9  # SGLang starts to retract requests slightly above
    latency_factor: float = 8.0  # times the lowest recent latency per token
    latency_memory: float = (
        1.05  # the lowest latency decays by this factor per report: replies may become short, prompts long
    )


class Concurrency:
    """`limit`: episodes that may run. `ceiling`: its upper bound, and the limit itself if not `adaptive`."""

    def __init__(self, ceiling: int, *, adaptive: bool, comfort: Comfort | None = None) -> None:
        self.limit = min(FIRST, ceiling) if adaptive else ceiling
        self._ceiling = ceiling
        self._adaptive = adaptive
        self._comfort = comfort or Comfort()
        self._last_stamp: Hashable = None
        self._lowest_latency_s = math.inf

    def update(self, report: LoadReport, busy: int) -> int:
        """The new limit, given a report and the number of episodes running now."""
        if not self._adaptive or report.stamp == self._last_stamp or not report.capacity:
            return self.limit
        self._last_stamp = report.stamp
        if report.token_latency_s:
            forgotten = self._lowest_latency_s * self._comfort.latency_memory
            self._lowest_latency_s = min(forgotten, report.token_latency_s)
        excess = self._excess(report)
        if excess > 0 and busy <= self.limit:
            cut = min(LARGEST_CUT, max(LEAST_CUT, excess))
            self.limit = max(1, min(self.limit - 1, math.floor(self.limit * (1 - cut))))
        elif excess <= 0 and busy >= self.limit:
            self.limit = min(self._ceiling, self.limit + self._step(report))
        return self.limit

    def _excess(self, report: LoadReport) -> float:
        """The share of the load that is excess; 0 or less: none."""
        comfort = self._comfort
        load = report.running + report.waiting
        may_wait = math.ceil(comfort.queue_slack * report.running)
        queue = (report.waiting - may_wait) / load if load else 0.0
        cache = 1 - comfort.token_usage / report.token_usage if report.token_usage else 0.0
        latency = 0.0
        if report.token_latency_s:
            latency = 1 - comfort.latency_factor * self._lowest_latency_s / report.token_latency_s
        return max(queue, cache, latency)

    def _step(self, report: LoadReport) -> int:
        """Fill free places quickly, as far as the cache allows; beyond them grow one by one."""
        free = report.capacity - report.running - report.waiting
        if report.token_usage:
            free = min(free, math.floor(self.limit * (self._comfort.token_usage / report.token_usage - 1)))
        return max(1, min(free // 2, self.limit))
