"""Random numbers of a session's own, for packages that draw from Python's global generator."""

import random
from collections.abc import Iterator
from contextlib import contextmanager


class OwnRandom:
    """The same seed gives the same numbers, with any other sessions between."""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within the block the global generator is the session's; after it, it is as it was."""
        others = random.getstate()
        random.setstate(self._state)
        try:
            yield
        finally:
            self._state = random.getstate()
            random.setstate(others)
