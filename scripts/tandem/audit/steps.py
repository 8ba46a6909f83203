"""The audit of optimizer steps: compares each step's report with the marks on the training data.

The two are independent: the trainer writes a step's report once, from the data that it borrowed and computed; commits and
resumes change the marks. Only this check finds a record that lost its mark and was trained again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from shared.documents.run import TrainedStep
from shared.store import Store
from tandem.audit.report import AuditReport, Check

Groups = Mapping[str, int]  # {task: records}


async def audit_trained_steps(
    store: Store, report: AuditReport, limits: Mapping[str, int], newest: Mapping[str, int]
) -> None:
    """`limits`: {policy: how often one record may be used}; `newest`: {policy: optimizer steps of its newest weights}."""
    run = await store.runs.get()
    for policy in limits:
        starts = run.starts.get(policy, []) if run else []
        logged = await store.steps.surviving(policy, starts)
        marked = await store.stored.marked_groups(policy)
        for step in logged:
            _compare(report, policy, step.step, dict(step.groups), marked.get(step.step, {}))
        without = sorted(step for step in marked.keys() - {s.step for s in logged} if step <= newest[policy])
        for number in without:
            _compare(report, policy, number, {}, marked[number])
        _look_for_repetitions(report, policy, logged, limits[policy])


def _compare(report: AuditReport, policy: str, step: int, logged: Groups, marked: Groups) -> None:
    for task in sorted(logged.keys() | marked.keys()):
        actual, expected = marked.get(task, 0), logged.get(task, 0)
        report.expect(
            Check.ACCOUNTS,
            actual == expected,
            f"policy {policy}, step {step}: trained {expected} records of {task}; {actual} have its mark",
        )


def _look_for_repetitions(report: AuditReport, policy: str, logged: Sequence[TrainedStep], limit: int) -> None:
    steps_of: dict[str, list[int]] = defaultdict(list)
    for step in logged:
        for task, _ in step.groups:
            steps_of[task].append(step.step)
    for task, steps in sorted(steps_of.items()):
        report.expect(
            Check.ACCOUNTS,
            len(steps) <= limit,
            f"policy {policy}: steps {', '.join(map(str, steps))} trained {task}; expected at most {limit}",
        )
