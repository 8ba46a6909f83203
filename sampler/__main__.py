"""Play a run's episodes until stopped.

python -m sampler --run RUN --db_connection_string URI --model_name_or_path DIR --mcp_manager_url URL

Start any number of samplers, on any machine that reaches the database, the engines and the tools. Any of them may be stopped
or killed at any time.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from sampler.core.service.garbage import collect_seldom
from sampler.core.service.service import run_service
from sampler.environments.config import EnvironmentsConfig
from sampler.settings import SamplerConfig
from shared.errors import ConfigError, TandemError, one_by_one
from shared.logs import begin_logging
from shared.processes.concealment import conceal
from shared.processes.open_files import require_files

ConfigT = TypeVar("ConfigT", bound=SamplerConfig | EnvironmentsConfig)
REFUSED = 2  # exit status: a setting is wrong; the launcher does not restart this sampler


def main() -> None:
    serve(SamplerConfig.load_or_exit(), run_service)


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


if __name__ == "__main__":
    run_command(main)
