"""Runs a service as a process: logs, memory, the event loop, and the exit status."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import uvloop

from sampler.core.service.garbage import collect_seldom
from shared.errors import ConfigError, TandemError, one_by_one
from shared.logs import begin_logging
from shared.open_files import require_files
from shared.processes.concealment import conceal

REFUSED = 2  # exit status: a setting is wrong; the launcher does not restart this service


class HasLogLevel(Protocol):
    @property
    def log_level(self) -> Any: ...

    def secrets(self) -> Any: ...


ConfigT = TypeVar("ConfigT", bound=HasLogLevel)


def serve(config: ConfigT, run: Callable[[ConfigT], Coroutine[Any, Any, None]]) -> None:
    """Run a service until it is stopped. Ends the process with a status if it fails."""
    conceal(config.secrets())  # stdio tool servers are children of this process
    begin_logging(config.log_level)
    collect_seldom()
    errors: list[BaseException] = []
    try:
        require_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(config))
    except* TandemError as group:
        errors = [*one_by_one(group)]
    for text in dict.fromkeys(f"{type(exc).__name__}: {exc}" for exc in errors):  # of many episodes often the same
        logging.getLogger("sampler").error("%s", text)
    if errors:  # not within `except*`: CPython 3.11.2, Debian 12's, makes a group of it
        sys.exit(REFUSED if any(isinstance(exc, ConfigError) for exc in errors) else 1)
