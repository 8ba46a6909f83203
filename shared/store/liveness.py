"""Liveness of processes and engines: one rule, on the server's clock.

Each document contains its heartbeat period (`heartbeat_s`). After `MISSED_HEARTBEATS` missed heartbeats the process or engine
counts as dead: samplers send an engine no more requests, trainers do not wait for it, `tandem status` and the launcher report it.
"""

from typing import Any

from shared.store.pipelines import NOW

MISSED_HEARTBEATS = 5
LEAST_SILENCE_S = 15.0  # lower bound: a busy machine may delay a process for some seconds


def is_live() -> dict[str, Any]:
    """Expression that is true for a live document with `heartbeat` and `heartbeat_s`."""
    period_s = {"$convert": {"input": "$heartbeat_s", "to": "double", "onError": 0, "onNull": 0}}
    silence_s = {"$max": [LEAST_SILENCE_S, {"$multiply": [MISSED_HEARTBEATS, period_s]}]}
    return {"$gte": ["$heartbeat", {"$subtract": [NOW, {"$multiply": [1000, silence_s]}]}]}
