"""A whole run, as it is after two groups were trained, with an engine and two processes that are alive for an hour."""

import math

from shared.documents.run import InferenceService, Worker
from shared.documents.states import DataStatus, ServiceStatus
from shared.store import Store
from tests.shared.episodes import whole_run


async def play(connection_string: str, run: str) -> None:
    async with Store.open(connection_string, run) as store:
        records = await whole_run(store)
        await store.data.set_aside(records[2:3], DataStatus.STALE, "too old")
        await store.settings.keep("sampler", {"temperature": 1.0}, "w")
        await store.steps.note_metrics("main:1:1", {"reward/mean": 0.25, "loss/loss": -0.5, "loss/ratio": math.nan})
        await store.services.heartbeat(
            InferenceService(
                id="http://e:1",
                url="http://e:1",
                policy="main",
                version=1,
                status=ServiceStatus.UP,
                heartbeat_s=3600,
            )
        )
        stats = {"episodes_per_s": 2.5, "claims": 7}
        rare = {
            "kind": "sampler",
            "host": "h",
            "heartbeat_s": 3600.0,
            "stats": stats,
        }  # alive as long as the module
        await store.workers.heartbeat(Worker(id="a", pid=7, doing="playing", **rare))
        await store.workers.heartbeat(Worker(id="b", pid=8, **rare))
