"""What a keeper reports with every heartbeat: its engine as a service, and itself as a worker."""

import os
import socket
from collections.abc import Mapping

from shared.documents.run import InferenceService, Worker
from shared.store import Store


async def report(store: Store, service: InferenceService, stats: Mapping[str, float]) -> None:
    await store.services.heartbeat(service)
    assert service.keeper is not None, "this process"
    await store.workers.heartbeat(
        Worker(
            id=service.keeper,
            kind="keeper",
            host=socket.gethostname(),
            pid=os.getpid(),
            doing=f"{service.url} {service.status} version {service.version}",
            heartbeat_s=service.heartbeat_s,
            stats=dict(stats),
        )
    )
