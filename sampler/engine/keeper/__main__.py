"""Run and update one inference engine of a run until stopped.

python -m sampler.engine.keeper --run RUN --db_connection_string URI --model_name_or_path DIR [--engine_url URL]
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

import asyncio
import logging
import sys

from sampler.core.engines.client.engine_client import EngineClient
from sampler.engine.keeper.cache import own_folder
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.keeper import Keeper
from sampler.engine.keeper.pulling import PulledVersions
from shared.errors import TandemError, one_by_one
from shared.files.private_folder import temporary_folder
from shared.http.metrics_page import of_worker, serving
from shared.logs import begin_logging
from shared.open_files import require_files
from shared.processes.concealment import conceal
from shared.processes.signals import ending_signals
from shared.store import Store
from shared.weights.assembly import Assembly

log = logging.getLogger("sampler.engine.keeper")


async def keep(config: KeeperConfig) -> None:
    stop = asyncio.Event()
    for sig in ending_signals():
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    client = EngineClient(api_key=config.engines.engine_api_key)
    cache = config.cache_dir or temporary_folder(config.run, config.policy)
    with own_folder(cache.resolve()) as folder:
        async with Store.open(config.db_connection_string, config.run) as store, client:
            assembly = Assembly(folder / "assembled", config.model_name_or_path)
            with serving(config.metrics_address, config.run, lambda: of_worker(store.workers.last)):
                async with PulledVersions(store, config, folder / "pulled") as pulled:
                    await Keeper(store, client, config, assembly, pulled).run(stop)


def main() -> None:
    config = KeeperConfig.load_or_exit()
    conceal(config.secrets())  # tools may run on this machine
    begin_logging(config.log_level)
    errors: list[BaseException] = []
    try:
        require_files()
        asyncio.run(keep(config))
    except* TandemError as group:
        errors = [*one_by_one(group)]
    for exc in errors:
        log.error("%s: %s", type(exc).__name__, exc)
    if errors:
        sys.exit(1)  # not within `except*`: CPython 3.11.2, Debian 12's, makes a group of it


if __name__ == "__main__":
    run_command(main)
