"""uvicorn inside a process that has signal handlers of its own."""

import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn


class QuietServer(uvicorn.Server):
    """Leaves signals to the process: uvicorn would close connections before the calls on them have ended.

    A request's headers are bounded: h11 refuses more than 64 KiB. httptools, which uvicorn prefers where it is installed, keeps
    as many as a client sends.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        """`app`: of ASGI. `options`: of `uvicorn.Config`."""
        super().__init__(
            uvicorn.Config(app, http="h11", lifespan="off", access_log=False, proxy_headers=False, **options)
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
