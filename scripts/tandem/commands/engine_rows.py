"""The mismatch of each engine of a run, as rows of `tandem status`: only where several sampled the tokens of the last steps."""

from typing import Any

from shared.documents.run import Run
from shared.engine_mismatch import by_engine, engine_name, engines_off
from shared.store import Store

STEPS = 10  # the newest, together: in one step an engine may have sampled few tokens


async def mismatch_of(store: Store, run: Run | None, policies: list[str]) -> list[dict[str, Any]]:
    """By policy and engine. `limit`: what its mismatch is above if it is far from the others'; None: it is not."""
    known = {engine_name(service.url): service for service in await store.services.all()}
    rows = []
    for policy in policies:
        starts = run.starts.get(policy, []) if run else []
        engines = by_engine(await store.steps.newest_metrics(policy, starts, STEPS))
        off = {one.found.engine: one for one in engines_off(engines)}
        for engine in engines:
            service = known.get(engine.engine)
            rows.append(
                {
                    "engine": engine.engine,
                    "policy": policy,
                    "kind": service.kind if service else None,
                    "dtype": service.dtype if service else None,
                    "tokens": round(engine.tokens),
                    "mismatch_mean_nats": engine.mismatch,
                    "k3_mean": engine.k3,
                    "staleness_mean_steps": engine.staleness,
                    "others_mean_nats": off[engine.engine].others if engine.engine in off else None,
                    "limit": off[engine.engine].limit if engine.engine in off else None,
                }
            )
    return rows


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row for people: `is off` says by what."""
    is_off = row["limit"] is not None
    return {
        "engine": row["engine"],
        "policy": row["policy"],
        "kind": row["kind"] or "gone",
        "data type": row["dtype"] or "–",
        "tokens #": f"{row['tokens']:,}",
        "mismatch nats #": f"{row['mismatch_mean_nats']:.2g}",
        "staleness #": f"{row['staleness_mean_steps']:.2f}",
        "": f"OFF: the others have {row['others_mean_nats']:.2g}" if is_off else "",
    }
