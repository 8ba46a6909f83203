"""The audit of rules: those that a group was opened with, and by which it is settled, are stored as they were written."""

from shared.documents.rules import RunRules, rules_id
from shared.store import Store
from tandem.audit.report import AuditReport, Check


async def audit_rules(store: Store, report: AuditReport) -> None:
    stored = {document["_id"]: document async for document in store.stored.all_rules()}
    async for row in store.stored.rules_of_groups():
        identity = rules_id(row["policy"], row["rules"])
        document = stored.get(identity)
        rules = None if document is None else report.read(RunRules, document)
        wrong = "are not stored" if document is None else "cannot be read" if rules is None else "were changed"
        right = rules is not None and rules.is_whole
        report.expect(
            Check.RULES, right, f"rules {identity}, of {row['groups']} groups such as {row['first']}: {wrong}"
        )
