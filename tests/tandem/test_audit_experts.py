"""The audit sees routed experts that are gone, or others than a turn names."""

import numpy as np
import pytest

from shared.documents import DispatchedSamplingTask
from shared.documents.routed_experts import pack_experts
from shared.store import Store
from tandem.audit.experts import audit_experts
from tandem.audit.report import AuditReport, Check
from tests.shared.episodes import whole_run

PACKED = pack_experts(np.arange(12).reshape(3, 4), 0)


async def examined(store: Store) -> tuple[int, list[str]]:
    await whole_run(store)
    stored = await store.database["dispatched_sampling_tasks"].find_one({"turn": 0})
    assert stored is not None
    one = DispatchedSamplingTask.from_mongo(stored).model_copy(update={"routed_experts": PACKED.described})
    report = AuditReport(store.run)
    await audit_experts(store, report, [one, one, one.model_copy(update={"routed_experts": None})])
    result = report.results[Check.EXPERTS]
    return result.examined, result.examples


async def test_what_is_stored_whole_is_right_and_read_once(store: Store) -> None:
    await store.routed_experts.keep(PACKED)
    assert await examined(store) == (1, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [(None, "is missing, but a request names it"), ({"data": b"\x00" * 12}, "12 bytes of another digest or number")],
)
async def test_what_is_gone_or_changed_is_a_violation(
    store: Store, change: dict[str, bytes] | None, message: str
) -> None:
    await store.routed_experts.keep(PACKED)
    chunks = store.database["routed_experts"]
    await (chunks.delete_many({}) if change is None else chunks.update_many({}, {"$set": change}))
    number, (example,) = await examined(store)
    assert number == 1
    assert message in example
