"""The audit of rules: those that a group was opened with, and by which it is settled, are stored as they were written."""

from collections.abc import Sequence

from shared.documents.rules import RunRules, rules_id
from shared.store import Store
from tandem.audit.report import AuditReport, Check
from tandem.audit.scope import TASKS_PER_QUERY


async def audit_rules(store: Store, report: AuditReport, tasks: Sequence[str] | None = None) -> None:
    """Of all groups, or of those of `tasks`, some at once."""
    if tasks is None:
        await _audit_rules(store, report, None)
    for start in range(0, len(tasks or ()), TASKS_PER_QUERY):
        await _audit_rules(store, report, (tasks or ())[start : start + TASKS_PER_QUERY])


async def _audit_rules(store: Store, report: AuditReport, tasks: Sequence[str] | None) -> None:
    stored = {document["_id"]: document async for document in store.stored.all_rules()}
    async for row in store.stored.rules_of_groups(tasks):
        identity = rules_id(row["policy"], row["rules"])
        document = stored.get(identity)
        rules = None if document is None else report.read(RunRules, document)
        wrong = "are not stored" if document is None else "cannot be read" if rules is None else "were changed"
        right = rules is not None and rules.is_whole
        report.expect(
            Check.RULES, right, f"rules {identity}, of {row['groups']} groups such as {row['first']}: {wrong}"
        )
