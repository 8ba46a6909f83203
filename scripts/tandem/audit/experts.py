"""The audit of routed experts: those that a turn names are stored whole."""

from collections.abc import Iterable

from shared.documents import DispatchedSamplingTask
from shared.errors import DataError
from shared.store import Store
from tandem.audit.report import AuditReport, Check


async def audit_experts(store: Store, report: AuditReport, dispatches: Iterable[DispatchedSamplingTask]) -> None:
    """Read each array once, one at a time, and compare its bytes with its digest and its number of tokens. Whether the
    turn has those tokens is in the digest of the tree."""
    named = {d.routed_experts.sha256: d for d in dispatches if d.routed_experts is not None}
    for dispatch in named.values():
        assert dispatch.routed_experts is not None, "chosen above"
        wrong = None
        try:
            await store.routed_experts.read([dispatch.routed_experts])
        except DataError as exc:
            wrong = f"{dispatch.id}: {exc}"
        report.expect(Check.EXPERTS, wrong is None, wrong or "")
