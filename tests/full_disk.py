"""Simulates a full disk for one process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file that this process writes may have more bytes; what it writes beyond them fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
