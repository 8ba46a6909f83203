"""Settlement: a completed group becomes training data.

    slots' records ─▶ advantages ─▶ token trees ─▶ record_data, dispatch results, record states ─▶ task settled | abandoned

Idempotent: everything is computed from what the group's slots say, and every id is derived. A settler that dies is replaced
when its lease ends, and the work is done again, with the same result.
"""

import logging

from sampler.advantages import ESTIMATORS
from sampler.config import SamplerConfig
from shared.documents import DBRecordData, DispatchTokens, Slot, Task
from shared.flatten import data_fields, flatten
from shared.states import RecordStatus, SlotStatus
from shared.store import Store

log = logging.getLogger(__name__)

TRAIN_SPLIT = "train"
SETTLE_LEASE_S = 30.0


async def settle_next(store: Store, worker: str, config: SamplerConfig) -> Task | None:
    """Settle one completed group of the policy, if there is one."""
    task = await store.tasks.claim_settlement(worker, policy=config.policy, lease_s=SETTLE_LEASE_S)
    if task is not None:
        await settle(store, task, config)
    return task


async def settle(store: Store, task: Task, config: SamplerConfig) -> None:
    """Settle a completed group; doing it again changes nothing."""
    scored = [slot for slot in task.slots if slot.status is SlotStatus.SCORED]
    if task.split != TRAIN_SPLIT:
        await _close(store, task, scored, RecordStatus.SCORED, {}, "evaluated", abandoned=False)
    elif len(scored) < min(config.min_group_size, task.num_generations):
        outcome = f"abandoned: {len(scored)} of {task.num_generations} episodes have a score"
        await _close(store, task, scored, RecordStatus.ABANDONED, {}, outcome, abandoned=True)
    else:
        advantages = dict(
            zip(map(_record_id, scored), ESTIMATORS[config.advantage](list(map(_score, scored))), strict=True)
        )
        await _write_data(store, task, scored, advantages)
        await _close(store, task, scored, RecordStatus.READY, advantages, "ready", abandoned=False)


async def _write_data(store: Store, task: Task, scored: list[Slot], advantages: dict[str, float]) -> None:
    dispatches = await store.records.tokens_of(list(advantages))
    results: dict[str, tuple[float, float]] = {}
    group = []
    for slot in scored:
        rid = _record_id(slot)
        group.append(_data(task, slot, dispatches[rid], advantages[rid], len(scored)))
        results |= {d.id: (_score(slot), advantages[rid]) for d in dispatches[rid]}
    await store.records.set_dispatch_results(results)
    await store.data.write_group(group)


def _data(task: Task, slot: Slot, dispatches: list[DispatchTokens], advantage: float, group_size: int) -> DBRecordData:
    tree = flatten(_record_id(slot), dispatches, advantage)
    return DBRecordData(
        id=_record_id(slot),
        task=task.id,
        group_size=group_size,
        seq=task.seq,
        policy=task.policy,
        split=task.split,
        source=task.source,
        reward=_score(slot),
        **data_fields(tree),
    )


async def _close(
    store: Store,
    task: Task,
    scored: list[Slot],
    status: RecordStatus,
    advantages: dict[str, float],
    outcome: str,
    *,
    abandoned: bool,
) -> None:
    await store.records.settle_group(task.id, {_record_id(slot): status for slot in scored}, advantages)
    await store.tasks.finish_settlement(task, outcome, abandoned=abandoned)
    log.info("settled task=%s outcome=%s scores=%s", task.id, outcome, [slot.score for slot in task.slots])


def _record_id(slot: Slot) -> str:
    assert slot.record_id is not None, "a scored slot names its record"
    return slot.record_id


def _score(slot: Slot) -> float:
    assert slot.score is not None, "a scored slot has its score"
    return slot.score
