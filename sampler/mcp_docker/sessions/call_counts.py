"""Counts of requests to tool servers, and of their times, in Prometheus' text format."""

import time
from collections.abc import Iterator, Mapping

PREFIX = "tandem_mcp_"
_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)


class CallCounts:
    """Counts of tool calls, by outcome, and their times."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.seconds = 0.0
        self._buckets = [0] * (len(_BUCKETS_S) + 1)

    def count(self, outcome: str, began: float) -> None:
        took_s = time.monotonic() - began
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.seconds += took_s
        self._buckets[next((i for i, bound in enumerate(_BUCKETS_S) if took_s <= bound), len(_BUCKETS_S))] += 1

    def lines(self) -> Iterator[str]:
        yield from family("calls_total", "counter", "Requests to tool servers by outcome.", "outcome", self.outcomes)
        name, total = f"{PREFIX}call_seconds", 0
        yield f"# HELP {name} Time of requests to tool servers."
        yield f"# TYPE {name} histogram"
        for bound, number in zip((*_BUCKETS_S, "+Inf"), self._buckets, strict=True):
            total += number
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.seconds:.6f}"
        yield f"{name}_count {total}"


def family(name: str, kind: str, text: str, label: str, values: Mapping[str, int]) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    for key, value in sorted(values.items()):
        yield f'{PREFIX}{name}{{{label}="{key}"}} {value}'
