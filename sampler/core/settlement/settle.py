"""Settlement: a completed group becomes training data. docs/train/groups.md describes the rules one by one.

    slots' records ─▶ each policy's share ─▶ rules ─▶ advantages ─▶ token trees ─▶ dispatches, record_data, records
                                                                                        ─▶ task settled | abandoned

A policy's share of a group (`shares.py`) consists of the turns that it took, with its own scores; only runs where policies take
turns have several shares. A record stores the outcome of the share of its own policy.

Idempotent: everything is computed from the group's documents and the rules that it was opened with (`current_rules.py`), no
setting of the process among it, and every id is derived. If a settler exits early, another
takes over when the lease ends and repeats the work with the same result. Dropped episodes are stored too, with the reason. A
record with unreadable documents is excluded from its group (and noted for `tandem status`), so that other records need not
wait.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence, Set

from sampler.core.settlement.current_rules import settlement_of_group
from sampler.core.settlement.group_scoring import given_up
from sampler.core.settlement.groups import ScoredEpisode
from sampler.core.settlement.shares import Part, Settlement, settle_share
from shared.documents import DBRecordData, DispatchedSamplingTask, Record, Slot, Task, data_id
from shared.documents.actors import trains
from shared.documents.states import DataStatus, RecordStatus, SlotStatus
from shared.episodes.state import OPEN
from shared.errors import DataError, MalformedDocument
from shared.names import TRAIN_SPLIT
from shared.outside_text import error_text
from shared.rules.groups import SettlementRules
from shared.store import Store
from shared.tokens.flatten import answered, data_fields, flatten
from shared.unforeseen import is_of_the_process

log = logging.getLogger(__name__)

SETTLE_LEASE_S = 30.0
MASKED = "over-long: in the group's baseline, without a loss"


async def claim_next(
    store: Store,
    worker: str,
    policy: str,
    excluded: Sequence[str] | None = None,
    rules: Sequence[int] | None = None,
) -> Task | None:
    """Lease one completed group of the policy, if there is one, after `end_waits`. `excluded`, `rules`: as for
    `claim_settlement`."""
    await end_waits(store, policy)
    return await store.tasks.claim_settlement(worker, policy=policy, lease_s=SETTLE_LEASE_S, left=excluded, rules=rules)


async def end_waits(store: Store, policy: str) -> list[str]:
    """End the waits for feedback whose deadline is over; returns the ids of their groups."""
    ended = []
    while (overdue := await store.feedback.end_overdue(policy)) is not None:
        try:
            await store.feedback.write_scores(overdue)  # settlement does it again, and counts a bug
        except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
            if is_of_the_process(exc):
                raise
            log.error("feedback of task=%s was not written: %s", overdue.id, error_text(exc))
        ended.append(overdue.id)
    return ended


async def settle(store: Store, task: Task) -> None:
    """Settle a completed group by the rules that it was opened with; repeating it changes nothing. Unreadable records are
    excluded and noted."""
    spoilt: set[str] = set()
    rules = await settlement_of_group(store, task) if task.split == TRAIN_SPLIT else SettlementRules()
    while True:
        try:
            await _settle(store, task, rules, spoilt)
        except SpoiltRecord as exc:
            await store.malformed.note(exc.problem)
            spoilt.add(exc.record)
        else:
            return


class SpoiltRecord(DataError):
    """A record of the group whose documents do not fit their models, or contradict each other."""

    def __init__(self, record: str, problem: MalformedDocument) -> None:
        super().__init__(str(problem))
        self.record, self.problem = record, problem


async def _settle(store: Store, task: Task, rules: SettlementRules, spoilt: Set[str]) -> None:
    await store.feedback.write_scores(task)  # where the process that gave feedback has not come to it
    await store.group_scores.write_records(task)
    scored = {_record_id(slot): _score(slot) for slot in task.slots if slot.status is SlotStatus.SCORED}
    for rid in spoilt:
        del scored[rid]
    if task.split != TRAIN_SPLIT:
        await store.records.settle_group(task.id, dict.fromkeys(scored, RecordStatus.SCORED), {}, {})
        await _finish(store, task, "evaluated", abandoned=False)
        return
    reason = given_up(task)
    if reason is not None:
        abandoned = dict.fromkeys(scored, RecordStatus.ABANDONED)
        await store.records.settle_group(task.id, abandoned, {}, dict.fromkeys(scored, reason))
        # Its scores say nothing, so the curriculum does not see them.
        await store.tasks.finish_settlement(task, f"abandoned: {reason}", abandoned=True)
        return
    parts = await _parts(store, task, scored)
    settlements = {}
    for policy, share in parts.items():
        if policy in rules.untrained_policies:
            continue
        read, settlement = settle_share(share, task.num_generations, rules)
        settlements[policy] = settlement
        advantages = {d: a for of_record in settlement.advantages.values() for d, a in of_record.items()}
        await store.records.set_advantages(advantages)
        data = [_data(task, policy, part, e, settlement) for part, e in zip(share, read, strict=True) if e.turns]
        await store.data.write_group(data)
    await _write_records(store, task, settlements[task.policy])
    data_of = sorted(policy for policy, settlement in settlements.items() if settlement.verdict.refusal is None)
    await _finish(store, task, _outcome(task, settlements, parts), abandoned=not data_of, data_of=data_of)


async def _parts(store: Store, task: Task, scored: Mapping[str, float]) -> dict[str, list[Part]]:
    """{policy: its part of each record}; for policies other than the task's only if it has one.

    A part whose turns were all drawn from another policy's engine contains no samples of the policy itself: it is omitted.
    """
    try:
        records = await store.records.get_many(list(scored))
        dispatches = await store.records.dispatches_of(list(scored))
    except MalformedDocument as exc:
        of_dispatch = exc.collection == DispatchedSamplingTask.collection
        raise SpoiltRecord(exc.document_id.rpartition(":")[0] if of_dispatch else exc.document_id, exc) from exc
    missing = scored.keys() - records
    if missing:
        raise SpoiltRecord(min(missing), MalformedDocument(Record.collection, min(missing), "it is gone"))
    parts: dict[str, list[Part]] = {task.policy: []}
    for rid, score in scored.items():
        own_turns = [dispatch for dispatch in dispatches[rid] if records[rid].includes(dispatch.id)]
        _require_closed(rid, own_turns)
        turns: dict[str, list[DispatchedSamplingTask]] = {task.policy: []}
        for dispatch in answered(own_turns):
            policy = dispatch.policy or task.policy
            if trains(policy):  # else a seat of fixed weights, or of an API model
                turns.setdefault(policy, []).append(dispatch)
        for policy, taken in turns.items():
            own = taken if any(dispatch.sampled_by is None for dispatch in taken) else []
            if own or policy == task.policy:
                part = Part(records[rid], records[rid].policy_scores.get(policy, score), own)
                parts.setdefault(policy, []).append(part)
    return parts


def _require_closed(rid: str, dispatches: Sequence[DispatchedSamplingTask]) -> None:
    """A request that was asked and never written since leaves an incomplete episode, which is not trained as if whole."""
    for dispatch in dispatches:
        if dispatch.status in OPEN:
            problem = f"is {dispatch.status.value}: its reply was never written, so its episode is incomplete"
            raise SpoiltRecord(rid, MalformedDocument(DispatchedSamplingTask.collection, dispatch.id, problem))


def _data(task: Task, policy: str, part: Part, episode: ScoredEpisode, settlement: Settlement) -> DBRecordData:
    """The policy's token tree. A dropped episode belongs to no group: `group_size` and advantages are 0."""
    verdict, rid = settlement.verdict, episode.record
    reason = verdict.dropped.get(rid)
    advantages = settlement.advantages.get(rid) or {turn.dispatch: 0.0 for turn in episode.turns}
    identity = data_id(rid, policy, task.policy)
    try:
        trained, context = rid not in settlement.masked, settlement.context
        tree = data_fields(flatten(identity, part.dispatches, advantages, trained=trained, context=context))
    except (DataError, ValueError, LookupError, TypeError, OverflowError) as exc:  # caused by the documents' contents
        problem = MalformedDocument(
            Record.collection, rid, f"its dispatches do not form a token tree: {str(exc)[:300]}"
        )
        raise SpoiltRecord(rid, problem) from exc
    shaping = dict(zip((e.record for e in verdict.kept), verdict.shaping, strict=True))
    return DBRecordData(
        id=identity,
        record=rid,
        task=task.id,
        group_size=0 if reason is not None else len(verdict.kept),
        seq=task.seq,
        policy=policy,
        split=task.split,
        source=task.source,
        duration_s=_duration_s(part.record),
        reward=episode.score,
        metrics=part.record.metrics,
        shaping=shaping.get(rid, 0.0),
        status=DataStatus.READY if reason is None else DataStatus.DROPPED,
        reason=reason,
        **tree,
    )


def _duration_s(record: Record) -> float:
    """On the server's clock; 0 for a record without times."""
    if record.created_at is None or record.finished_at is None:
        return 0.0
    return (record.finished_at - record.created_at).total_seconds()


async def _write_records(store: Store, task: Task, settlement: Settlement) -> None:
    verdict = settlement.verdict
    statuses = dict.fromkeys(settlement.advantages, RecordStatus.READY)
    statuses |= dict.fromkeys(verdict.dropped, RecordStatus.ABANDONED)
    advantages = {rid: _mean(list(of_record.values())) for rid, of_record in settlement.advantages.items()}
    reasons = verdict.dropped | dict.fromkeys(settlement.masked, MASKED)
    await store.records.settle_group(task.id, statuses, advantages, reasons, are_all=_are_all(task, statuses))


def _are_all(task: Task, records: Collection[str]) -> bool:
    """Whether these are all that there are: each slot was claimed once, and its record is among them."""
    return all(slot.attempt == 1 and slot.record_id in records for slot in task.slots)


def _mean(advantages: Sequence[float]) -> float:
    """The mean; exactly the common value if all turns have the same advantage."""
    alike = min(advantages) == max(advantages)
    return advantages[0] if alike else math.fsum(advantages) / len(advantages)


def _outcome(task: Task, settlements: Mapping[str, Settlement], parts: Mapping[str, Sequence[Part]]) -> str:
    """The outcome of each policy's share; named by policy if they differ."""
    outcomes = {policy: _outcome_of(settlement, len(parts[policy])) for policy, settlement in settlements.items()}
    if len(set(outcomes.values())) == 1:
        return outcomes[task.policy]
    return "; ".join(f"{policy}: {outcome}" for policy, outcome in outcomes.items())


def _outcome_of(settlement: Settlement, num_scored: int) -> str:
    verdict = settlement.verdict
    if verdict.refusal is not None:
        return f"abandoned: {verdict.refusal}"
    dropped, masked = len(verdict.dropped), len(settlement.masked)
    changes = [f"{dropped} of {num_scored} dropped"] if dropped else []
    changes += [f"{masked} without a loss"] if masked else []
    return "; ".join(["ready", *changes])


async def _finish(store: Store, task: Task, outcome: str, *, abandoned: bool, data_of: Sequence[str] = ()) -> None:
    await store.tasks.finish_settlement(task, outcome, abandoned=abandoned, data_of=data_of, skips=True)
    log.info("settled task=%s outcome=%s scores=%s", task.id, outcome, [slot.score for slot in task.slots])


def _record_id(slot: Slot) -> str:
    assert slot.record_id is not None, "a scored slot names its record"
    return slot.record_id


def _score(slot: Slot) -> float:
    assert slot.score is not None, "a scored slot has its score"
    return slot.score
