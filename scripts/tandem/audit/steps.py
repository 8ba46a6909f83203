"""The audit of optimizer steps: compares each step's report with the marks on the training data.

The two are independent: the trainer writes a step's report once, from the data that it borrowed and computed; commits and
resumes change the marks. Only this check finds a record that lost its mark and was trained again.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shared.documents.run import TrainedStep
from shared.store import Store
from tandem.audit.report import AuditReport, Check
from tandem.audit.scope import AuditScope

Groups = Mapping[str, int]  # {task: records}
STEPS_AT_ONCE = 256


async def audit_trained_steps(store: Store, report: AuditReport, scope: AuditScope) -> None:
    """Every step of every policy. Of all groups that were trained it holds 8 bytes each."""
    run = await store.runs.get()
    for policy, limit in scope.limits.items():
        starts = run.starts.get(policy, []) if run else []
        trained = array("q")
        parts = list(parts_of(await store.stored_steps.step_numbers(policy)))
        for first, last in parts:
            for step in await audit_steps(store, report, scope, policy, starts, first, last):
                trained.extend(hash(task) for task, _ in step.groups)
        different, times = np.unique(np.frombuffer(trained, dtype=np.int64), return_counts=True)
        suspects = set(different[times > limit].tolist())
        report.expect(Check.ACCOUNTS, True, n=len(different) - len(suspects))
        steps_of: dict[str, list[int]] = defaultdict(list)
        for first, last in parts if suspects else ():
            for step in await store.stored_steps.steps(policy, first, last):
                for task, _ in step.groups if step.survives(starts) else ():
                    if hash(task) in suspects:
                        steps_of[task].append(step.step)
        expect_few(report, policy, steps_of, limit)


def parts_of(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of every `STEPS_AT_ONCE` step numbers."""
    for start in range(0, len(numbers), STEPS_AT_ONCE):
        part = numbers[start : start + STEPS_AT_ONCE]
        yield part[0], part[-1]


# 7 parameters: a policy's steps, and what is known of the policy
async def audit_steps(
    store: Store, report: AuditReport, scope: AuditScope, policy: str, starts: Sequence[int], first: int, last: int
) -> list[TrainedStep]:
    """Compare the steps from `first` to `last` with the marks; returns those that are part of the weights."""
    logged = [step for step in await store.stored_steps.steps(policy, first, last) if step.survives(starts)]
    marked = await store.stored_steps.marked_groups(policy, first, last)
    for step in logged:
        _compare(report, policy, step.step, dict(step.groups), marked.get(step.step, {}))
    for number in sorted(marked.keys() - {step.step for step in logged}):
        if number <= scope.newest[policy]:
            _compare(report, policy, number, {}, marked[number])
    return logged


def _compare(report: AuditReport, policy: str, step: int, logged: Groups, marked: Groups) -> None:
    if logged == marked:
        report.expect(Check.ACCOUNTS, True, n=len(logged))
        return
    for task in sorted(logged.keys() | marked.keys()):
        actual, expected = marked.get(task, 0), logged.get(task, 0)
        report.expect(
            Check.ACCOUNTS,
            actual == expected,
            f"policy {policy}, step {step}: trained {expected} records of {task}; {actual} have its mark",
        )


def expect_few(report: AuditReport, policy: str, steps_of: Mapping[str, Sequence[int]], limit: int) -> None:
    """Check that at most `limit` steps trained each of these tasks."""
    for task, steps in sorted(steps_of.items()):
        report.expect(
            Check.ACCOUNTS,
            len(steps) <= limit,
            f"policy {policy}: steps {', '.join(map(str, steps))} trained {task}; expected at most {limit}",
        )
