"""A simulated engine: a decoding step of n requests takes `step_s + n · request_step_s` and samples a token of each.

    arrive ─▶ queue (capacity, KV cache) ─▶ prefill (stops decoding) ─▶ decode ─▶ reply

Between two events n is constant, so time is advanced in one go: `decoded` counts the tokens that each running request has got
since the start, and a request ends once that count has grown by its reply. Exact for equal shares; an event costs O(log n).
"""

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field

ROUNDING = 1e-6  # seconds, and tokens: times are sums of floats


@dataclass(frozen=True, slots=True)
class EngineModel:
    """`prefill_s`: per prompt token that is not cached. `overhead_s`: of a request outside of the engine. `request_tokens`: the
    shared work of a request before its first token, in tokens. `kv_tokens` 0: no bound. `update_s`: loading new weights, for
    which decoding stops. `count`: engines of this kind."""

    step_s: float
    request_step_s: float = 0.0
    prefill_s: float = 0.0
    overhead_s: float = 0.0
    request_tokens: int = 0
    capacity: int = 256
    kv_tokens: int = 0
    update_s: float = 0.0
    count: int = 1


# compared by identity: two requests may have equal fields
@dataclass(eq=False, slots=True)
class Request:
    """`context`: the prompt's tokens. `versions`: sampled tokens by the version of the weights."""

    context: int
    fresh: int
    output: int
    seen_update: int = -1  # number of the engine's update at its episode's last turn there
    began: float = 0.0  # the engine's `decoded` when it began to run
    running: bool = False
    cancelled: bool = False
    versions: Counter[int] = field(default_factory=Counter)

    @property
    def reserved(self) -> int:
        return self.context + self.output


class SimulatedEngine:
    """`advance` before anything else at a time; `next_end` is when the next reply ends if nothing else happens."""

    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self._now = 0.0
        self._decoded = 0.0
        self._stall_s = 0.0  # prefill and loading that is still to do
        self._ends: list[tuple[float, int, Request]] = []
        self._waiting: deque[Request] = deque()
        self._running: set[Request] = set()
        self._reserved = 0
        self._order = 0
        self._began = [(0.0, 0)]  # (`decoded`, version) at the start of each version
        self._next_version: int | None = None  # waits until the running requests have ended
        self.updates = 0
        self.busy_s = 0.0  # with a running request
        self.running_s = 0.0  # the same, times their number
        self.recomputed = 0  # tokens of running requests that were prefilled again

    @property
    def load(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def version(self) -> int:
        return self._began[-1][1]

    def advance(self, now: float) -> None:
        passed = now - self._now
        self._now = now
        stalled = min(passed, self._stall_s)
        self._stall_s -= stalled
        if self._running:
            self.busy_s += passed
            self.running_s += passed * len(self._running)
            self._decoded += (passed - stalled) / self._token_s()

    def next_end(self) -> float | None:
        """None: nothing runs."""
        while self._ends and self._ends[0][2].cancelled:
            heapq.heappop(self._ends)
        if not self._ends:
            return None
        return self._now + self._stall_s + max(0.0, self._ends[0][0] - self._decoded) * self._token_s()

    def arrive(self, request: Request) -> None:
        self._waiting.append(request)
        self._admit()

    def pop_ended(self) -> Request | None:
        """A request whose reply has ended by now."""
        self.next_end()
        if self._stall_s > ROUNDING or not self._ends or self._ends[0][0] > self._decoded + ROUNDING:
            return None
        _, _, request = heapq.heappop(self._ends)
        self._leave(request, request.began + self._model.request_tokens + request.output)
        return request

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        if request.running:
            self._leave(request, self._decoded)
        else:
            self._waiting.remove(request)

    def update(self, version: int, *, drain: bool) -> None:
        """Loads `version`: at once, and the running requests are prefilled again and go on; or once they have ended."""
        self._next_version = version
        if not drain:
            again = sum(
                request.context + max(0, round(self._decoded - request.began) - self._model.request_tokens)
                for request in self._running
            )
            self.recomputed += again
            self._stall_s += again * self._model.prefill_s
        if not drain or not self._running:
            self._load_weights()

    def _load_weights(self) -> None:
        if self._next_version is None:
            return
        self._stall_s += self._model.update_s
        self._began.append((self._decoded, self._next_version))
        self._next_version = None
        self.updates += 1
        self._admit()

    def _admit(self) -> None:
        model = self._model
        while self._waiting and self._next_version is None and len(self._running) < model.capacity:
            request = self._waiting[0]
            full = model.kv_tokens and self._reserved + request.reserved > model.kv_tokens
            if full and self._running:  # alone it runs in any case
                return
            self._waiting.popleft()
            fresh = request.fresh if request.seen_update == self.updates else request.context
            self._stall_s += model.prefill_s * max(request.fresh, fresh if request.seen_update >= 0 else 0)
            request.began, request.running = self._decoded, True
            request.seen_update = self.updates
            self._reserved += request.reserved
            self._running.add(request)
            self._order += 1
            heapq.heappush(
                self._ends, (request.began + self._model.request_tokens + request.output, self._order, request)
            )

    def _leave(self, request: Request, end: float) -> None:
        """Its tokens between `began` and `end`, by the versions that sampled them."""
        self._running.remove(request)
        request.running = False
        self._reserved -= request.reserved
        first = request.began + self._model.request_tokens
        edges = [*(at for at, _ in self._began[1:]), float("inf")]
        sampled = 0
        for (_, version), edge in zip(self._began, edges, strict=True):
            upto = max(0, min(round(min(edge, end) - first), request.output))
            if upto > sampled:
                request.versions[version] += upto - sampled
                sampled = upto
        if not self._running:
            self._load_weights()
        self._admit()

    def _token_s(self) -> float:
        return self._model.step_s + self._model.request_step_s * len(self._running)
