"""The audit of tools: the tool list that a request names is stored and matches its hash."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.documents.tool_schemas import ToolSchemas, is_of_earlier_version
from shared.store import Store
from tandem.audit.report import AuditReport, Check
from tandem.audit.scope import TASKS_PER_QUERY

AT_ONCE = 20  # tool lists may be large


async def audit_tools(store: Store, report: AuditReport, tasks: Sequence[str] | None = None) -> None:
    """Of all requests; `tasks`: only of the requests of these, some at once."""
    if tasks is None:
        await _audit_tools(store, report, None)
    for start in range(0, len(tasks or ()), TASKS_PER_QUERY):
        await _audit_tools(store, report, (tasks or ())[start : start + TASKS_PER_QUERY])


async def _audit_tools(store: Store, report: AuditReport, tasks: Sequence[str] | None) -> None:
    named: list[dict[str, Any]] = []
    earlier = 0
    async for row in store.stored.named_tools(tasks):
        if is_of_earlier_version(row["_id"]):
            earlier += 1
        else:
            named.append(row)
        if len(named) == AT_ONCE:
            await _audit_named(store, report, named)
            named = []
    await _audit_named(store, report, named)
    if earlier:
        report.results[Check.TOOLS].note = f"an earlier version did not store its {earlier} lists"


async def _audit_named(store: Store, report: AuditReport, named: list[dict[str, Any]]) -> None:
    stored = await store.stored.tool_schemas([row["_id"] for row in named])
    for row in named:
        wrong = _wrong(report, stored.get(row["_id"]))
        text = f"tools_hash {row['_id']}, of {row['requests']} requests such as {row['first']}: {wrong}"
        report.expect(Check.TOOLS, wrong is None, text)


def _wrong(report: AuditReport, document: Mapping[str, Any] | None) -> str | None:
    if document is None:
        return "the list is not stored"
    schemas = report.read(ToolSchemas, document)
    if schemas is None:
        return "its list cannot be read"
    return None if schemas.is_whole() else "the stored list has another hash"
