"""uvicorn inside a process that has signal handlers of its own."""

import contextlib
from collections.abc import Iterator

import uvicorn


class QuietServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would close connections before the calls on them have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
