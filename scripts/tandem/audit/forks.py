"""The audit of forks: the first prompt of each of their episodes is the prompt of the turn that it goes on from."""

from collections.abc import Sequence

from shared.documents import DispatchedSamplingTask, Record, Task
from shared.documents.packed import unpack_ints
from shared.episodes.state import EpisodeState
from shared.store import Store
from tandem.audit.report import AuditReport, Check


async def audit_forks(store: Store, report: AuditReport, tasks: Sequence[Task]) -> None:
    """Compare token by token, for the last attempt at each slot."""
    for task in tasks:
        fork = task.payload.fork
        if fork is None:
            continue
        ids = [slot.record_id for slot in task.slots if slot.record_id is not None]
        expected = await _prompt(store, report, fork.record, fork.turn)
        for record, documents in (await store.stored.dispatches(ids)).items():
            read = report.read_all(DispatchedSamplingTask, documents)
            if not read:  # it failed before it asked
                continue
            first = min(read, key=lambda d: d.turn)
            actual = unpack_ints(first.prompt_ids).tolist()
            gone = "is gone" if expected is None else f"has {len(expected)} tokens"
            report.expect(
                Check.FORKED,
                first.parent is None and actual == expected,
                f"{record}: its first prompt, of {len(actual)} tokens, is not that of {fork.dispatch}, which {gone}",
            )


async def _prompt(store: Store, report: AuditReport, record_id: str, turn: int) -> list[int] | None:
    """None: the documents are gone."""
    documents = (await store.stored.records([record_id])).get(record_id)
    record = None if documents is None else report.read(Record, documents)
    if record is None:
        return None
    stored = (await store.stored.dispatches([record_id]))[record_id]
    state = EpisodeState(record, report.read_all(DispatchedSamplingTask, stored))
    return state.prompt_of(turn) if any(one.number == turn for one in state.turns) else None
