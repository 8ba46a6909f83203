"""Token throughput over a recent window."""

import time
from collections import deque

WINDOW_S = 20.0


class TokenRate:
    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def per_s(self, tokens: int) -> float:
        """Tokens per second; `tokens`: the total so far."""
        now = time.monotonic()
        self._marks.append((now, tokens))
        while now - self._marks[0][0] > WINDOW_S:
            self._marks.popleft()
        first_at, first_tokens = self._marks[0]
        return (tokens - first_tokens) / (now - first_at) if now > first_at else 0.0
