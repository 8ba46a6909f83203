"""Engines, environments and processes of a run, as rows of `tandem status`."""

import math
from datetime import datetime
from typing import Any

from shared.documents.run import Worker
from shared.store import Store
from shared.store.runs import has_left
from tandem.commands.connect import ago

LONG_GONE_S = 600.0  # workers that died earlier are only counted


async def services_of(store: Store) -> list[dict[str, Any]]:
    is_live = await store.services.is_live()
    now = await store.questions.server_time()
    return [
        {
            "url": s.url,
            "policy": s.policy,
            "kind": s.kind,
            "dtype": s.dtype,
            "version": s.version,
            "status": s.status.value,
            "running": s.running,
            "waiting": s.waiting,
            "capacity": s.capacity,
            "heard": ago(s.heartbeat, now),
            "live": s.id in is_live,
            "error": s.error,
        }
        for s in await store.services.all()
    ]


async def environments_of(store: Store) -> list[dict[str, Any]]:
    live = {service.id for service in await store.environments.live()}
    now = await store.questions.server_time()
    return [
        {
            "url": s.url,
            "kinds": " ".join(s.kinds),
            "running": s.running,
            "starting": s.starting,
            "capacity": s.capacity,
            "version": s.version,
            "heard": ago(s.heartbeat, now),
            "live": s.id in live,
        }
        for s in await store.environments.all()
    ]


def workers_of(workers: list[Worker], live: set[str], now: datetime) -> list[dict[str, Any]]:
    return [
        {
            "kind": w.kind,
            "process": f"{w.host}:{w.pid}",
            "doing": w.doing,
            "heard": ago(w.heartbeat, now),
            "live": w.id in live,
            "gone": has_left(w.doing) or (w.id not in live and _age_s(w.heartbeat, now) > LONG_GONE_S),
            "stats": w.stats,
            "alarms": w.alarms,
        }
        for w in workers
    ]


def _age_s(heartbeat: datetime | None, now: datetime) -> float:
    return math.inf if heartbeat is None else (now - heartbeat).total_seconds()
