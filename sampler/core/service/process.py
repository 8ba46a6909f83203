"""What a process of samplers is connected to, from its start to its end."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sampler.core.engines.client.engine_client import EngineClient, EngineTimeouts
from sampler.core.scorers import import_scorers
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tenant import tenants_of
from shared.http.metrics_page import of_worker, serving
from shared.store import Store


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """What a process of samplers is connected to, and its name among the workers of the run."""

    store: Store
    client: EngineClient
    worker: str


def load_scorers(config: CoreConfig) -> None:
    """Import what registers scorers: tenants, then users' modules, which may not take their names. Raises ConfigError."""
    tenants_of(config)
    import_scorers(config.scoring.scorer_modules)


@contextlib.asynccontextmanager
async def service_process(config: CoreConfig, kind: str) -> AsyncIterator[ServiceProcess]:
    """`kind`: with which its name begins."""
    load_scorers(config)
    async with (
        Store.open(config.db_connection_string, config.run) as store,
        EngineClient(
            EngineTimeouts(generate_s=config.engines.engine_timeout_s),
            config.engines.engine_api_key,
            # No request waits here for a connection: it would reach its engine later than the pool assumes.
            max_connections=max(1024, 2 * config.queue.max_concurrent_episodes),
        ) as client,
    ):
        with serving(config.metrics_address, config.run, lambda: of_worker(store.workers.last)):
            yield ServiceProcess(store, client, f"{kind}:{socket.gethostname()}:{os.getpid()}")
