"""Whether the keepers of this host keep their engines on the announced weights: `python -m sampler.engine.keeper.health`.

Takes a keeper's own settings. Exit status 0 only if a keeper of this host and policy has a current heartbeat, and for each such
keeper the engine itself answers with the version that the keeper tells, and no version has waited longer than `MAX_LAG_S` to be
loaded. An engine that sleeps while a trainer has its device is healthy, and has no version.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)


import asyncio
import socket
import sys
from datetime import timedelta

from sampler.core.engines.client.engine_client import EngineClient
from sampler.engine.keeper.config import KeeperConfig
from shared.documents.run import FIRST_VERSION, InferenceService
from shared.documents.states import ServiceStatus
from shared.errors import TandemError
from shared.store import Store

MAX_LAG_S = 300.0  # the largest weights take minutes to be loaded


async def problem(config: KeeperConfig, host: str) -> str | None:
    """What is wrong; None: nothing."""
    async with Store.open(config.db_connection_string, config.run, read_only=True) as store:
        own = [s for s in await store.services.live(config.policy) if (s.keeper or "").startswith(f"keeper:{host}:")]
        if not own:
            return f"no keeper on host {host} has a current heartbeat"
        problems = [await _problem_of(store, config, service) for service in own]
    return "; ".join(text for text in problems if text) or None


async def _problem_of(store: Store, config: KeeperConfig, service: InferenceService) -> str | None:
    if service.status is ServiceStatus.ASLEEP:
        return None
    if service.status not in (ServiceStatus.UP, ServiceStatus.UPDATING, ServiceStatus.DRAINING):
        return f"engine {service.url} is {service.status}: {service.error}"
    return await _wrong_version(store, config, service) or await _late(store, config, service)


async def _wrong_version(store: Store, config: KeeperConfig, service: InferenceService) -> str | None:
    if service.status is not ServiceStatus.UP:
        return None  # between two versions
    async with EngineClient(api_key=config.engines.engine_api_key) as client:
        label = (await client.model_info(service.url)).weight_version
        loaded = set() if service.adapter is None else await client.adapters(service.url)
    if service.adapter is not None:  # the label is the base's
        if label == str(FIRST_VERSION) and service.adapter in loaded:
            return None
        return f"engine {service.url} has base {label}, and the adapters {sorted(loaded)}; its keeper tells {service.adapter}"
    newer = [s for s in await store.services.live(config.policy) if s.url == service.url]
    if label in {str(acceptable.version) for acceptable in (service, *newer)} or any(
        s.status is not ServiceStatus.UP for s in newer
    ):
        return None
    return f"engine {service.url} answers with version {label}; its keeper tells {service.version}"


async def _late(store: Store, config: KeeperConfig, service: InferenceService) -> str | None:
    if service.serve_version is not None:
        return None  # it follows none
    newest = await store.versions.newest(config.policy)
    if newest is None or newest.version < service.version + config.follow_every or newest.created_at is None:
        return None
    if await store.evaluation.awaited_version(config.policy, before=newest.version) is not None:
        return None  # it serves an older one, to be evaluated
    age = await store.questions.server_time() - newest.created_at
    if age < timedelta(seconds=MAX_LAG_S):
        return None
    return f"engine {service.url} serves version {service.version}; {newest.version} was announced {age} ago"


def main() -> None:
    config = KeeperConfig.load_or_exit()
    try:
        trouble = asyncio.run(problem(config, socket.gethostname()))
    except TandemError as exc:
        trouble = str(exc)
    if trouble:
        sys.stderr.write(f"{trouble}\n")
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
