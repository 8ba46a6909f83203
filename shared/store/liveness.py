"""Who is alive: one rule for every process and every engine of a run, on the server's clock.

Each says in its document how often it means to be heard of (`heartbeat_s`). Not heard of for `MISSED_HEARTBEATS` of those it is
taken for dead: samplers send an engine nothing more, trainers do not wait for it, `tandem status` and the launcher say so.
"""

from typing import Any

from shared.store.pipelines import NOW

MISSED_HEARTBEATS = 5
LEAST_SILENCE_S = 15.0  # and no sooner: a busy machine may hold up a process for some seconds


def heard_of() -> dict[str, Any]:
    """An expression over a document with `heartbeat` and `heartbeat_s`: it is alive."""
    period_s = {"$convert": {"input": "$heartbeat_s", "to": "double", "onError": 0, "onNull": 0}}
    silence_s = {"$max": [LEAST_SILENCE_S, {"$multiply": [MISSED_HEARTBEATS, period_s]}]}
    return {"$gte": ["$heartbeat", {"$subtract": [NOW, {"$multiply": [1000, silence_s]}]}]}
