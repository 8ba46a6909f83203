"""Output of a program: all of it is read, its beginning and its end are kept."""

import os
from collections import deque


class BoundedOutput:
    """At most `most_chars` of the text, and how many bytes were left out in the middle."""

    def __init__(self, most_chars: int) -> None:
        self._half = max(1, most_chars // 2)
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        self._head += piece[:room]
        rest = piece[room:] if room < len(piece) else b""
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._half:
            dropped = self._tail.popleft()
            self._tail_bytes -= len(dropped)
            self._dropped += len(dropped)

    def add_available(self, descriptor: int) -> bool:
        """What a non-blocking pipe has now. False: all its writers have closed it."""
        while True:
            try:
                piece = os.read(descriptor, 65536)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self.add(piece)

    @property
    def text(self) -> str:
        tail = b"".join(self._tail)
        dropped = self._dropped + max(0, len(tail) - self._half)
        tail = tail[-self._half :]
        gap = f"\n[… {dropped} bytes of output left out …]\n".encode() if dropped else b""
        return (self._head + gap + tail).decode("utf-8", "replace")
