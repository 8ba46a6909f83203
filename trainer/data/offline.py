"""Offline training: the groups that another run has recorded are copied into this one, and trained like its own.

    run OTHER (read only) ─▶ tasks, records, dispatches, record data: copied once, without OTHER's marks ─▶ the stream

So a step's records can be traced, audited and given back as ever, and OTHER may go on or be deleted. What OTHER gets later
is copied when the trainer starts again. Its weight versions are not this run's: every token has staleness 0 here, and how far the
policy has moved from the one that sampled it is seen in the mismatch (`loss/k3_mean`), not in staleness.
"""

import concurrent.futures
import logging

from shared.errors import ConfigError
from shared.store import Store
from shared.store.copying import copy_groups
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig

log = logging.getLogger(__name__)

COPY_TIMEOUT_S = 24 * 3600.0
KEEP_ALIVE_S = 60.0  # far below COLLECTIVE_TIMEOUT_S


def check_source(bridge: StoreBridge, config: TrainerConfig) -> None:
    """A run has data of its own samplers or of one other run, never both. Raises ConfigError."""
    run = bridge(bridge.store.runs.get())
    offline = config.data.offline
    now = offline.data_run if offline else None
    before = bridge(bridge.store.settings.of_trainer(run, config.policy)).get("data_run")
    if before != now and bridge(bridge.store.data.count_by_status(config.policy)):
        raise ConfigError(
            f"run {config.run} has the data of {f'run {before}' if before else 'its own samplers'}, and data_run is "
            f"{now or 'not set'}: their weight versions and marks would mix; choose another run name"
        )


def bring_in(bridge: StoreBridge, config: TrainerConfig, parallel: Parallel) -> None:
    """Copy what `data_run` has and this run has not; without `data_run` nothing. It may be repeated, and be killed.

    Every rank must call it. The first one copies; the others wait as long as it takes, since they hear of it now and then.
    """
    offline = config.data.offline
    if offline is None:
        return
    source = offline.data_db or config.db_connection_string, offline.data_run
    copying = bridge.start(_copy(bridge.store, config.policy, source), COPY_TIMEOUT_S) if parallel.is_main else None
    while not parallel.broadcast_object(copying is not None and _ended(copying)):
        pass
    if copying is not None:
        log.info("offline data_run=%s copied_groups=%d", offline.data_run, copying.result())


def _ended(copying: "concurrent.futures.Future[int]") -> bool:
    """Within `KEEP_ALIVE_S`, well or not."""
    return bool(concurrent.futures.wait([copying], KEEP_ALIVE_S).done)


async def _copy(target: Store, policy: str, database_and_run: tuple[str, str]) -> int:
    async with Store.open(*database_and_run, read_only=True) as source:
        return await copy_groups(source, target, policy)
