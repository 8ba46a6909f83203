"""How far ahead tasks may be opened: the gate on a claim, from what the documents say.

A task belongs to one policy, in whose order it is opened; the data of its episodes is every policy's that took turns
in them. So it may be opened while *each* of them wants it:

    groups opened and not trained yet  <  (1 + max_staleness) · groups_per_step

for every policy that still has steps to take, with its own budget. Not trained yet is a group that is played, that
waits for its settlement or has untrained data of the policy, and one whose weights the policy's trainer has not
published yet. What gave a policy nothing, was set aside by its trainer or skipped by the curriculum uses up no
budget. Of the policy that has least room there is enough data for its next step when everything opened is settled,
so the policies cannot wait for each other. A policy whose trainer has taken its last step limits no other, and goes on
playing as it is.
"""

from collections.abc import Mapping, Sequence

from shared.documents.run import Admission
from shared.store import Store
from shared.store.admission import OffPolicyBudget


async def seq_limit(store: Store, policies: Sequence[str], admissions: Mapping[str, Admission]) -> tuple[int, str]:
    """The limit, and what to say about it. The first of `policies` owns the tasks; the others take turns in their episodes.

    All have a trainer: a frozen policy takes turns and wants no data.
    """
    owner, *_ = policies
    if missing := [policy for policy in policies if policy not in admissions]:
        return 0, f"waiting for the trainer of policy {missing[0]} to start (frozen_policies: those without one)"
    budgets: dict[str, OffPolicyBudget] = {}
    for policy in policies:
        newest = await store.versions.newest(policy)
        step = newest.step if newest else 0
        budgets[policy] = OffPolicyBudget(step, admissions[policy].groups_after(step))
    training = {policy: budget for policy, budget in budgets.items() if not _ended(admissions[policy], budget)}
    return await store.admission.seq_limit(owner, training or budgets), "sampling"


def _ended(admission: Admission, budget: OffPolicyBudget) -> bool:
    return admission.num_steps is not None and budget.step >= admission.num_steps
