"""How far ahead tasks may be opened: the gate on a claim, from what the documents say.

A task belongs to one policy, in whose order it is opened; the data of its episodes is every policy's that took turns in them. So
it may be opened while *each* of them wants it:

    seq < least over the policies that still have steps to take of  (step + 1 + max_staleness) · groups_per_step + discarded

`policies` are those that have a trainer: a frozen one takes turns and wants no data.

with each policy's own step, appetite and discarded groups (those of this order that gave it nothing). Whoever's limit is the
least has enough data for its next step when everything below is settled, so the policies cannot wait for each other. A policy
whose trainer has taken its last step limits nobody, and goes on playing as it is.
"""

from collections.abc import Mapping, Sequence

from shared.run_documents import Admission
from shared.store import Store

TRAIN_SPLIT = "train"


async def seq_limit(store: Store, policies: Sequence[str], admissions: Mapping[str, Admission]) -> tuple[int, str]:
    """The limit, and what to say about it. The first of `policies` owns the tasks; the others take turns in their episodes."""
    owner, *_ = policies
    if missing := [policy for policy in policies if policy not in admissions]:
        return 0, f"waiting for the trainer of policy {missing[0]} to start (frozen_policies: those without one)"
    limits: list[int] = []
    ended: list[int] = []
    for policy in policies:
        newest = await store.versions.newest(policy)
        step = newest.step if newest else 0
        discarded = await store.tasks.count_without_data(owner, TRAIN_SPLIT, policy)
        discarded += await store.data.count_discarded_groups(policy)
        limit = await store.tasks.admission_limit(owner, admissions[policy], step, discarded)
        last = admissions[policy].num_steps
        (limits if last is None or step < last else ended).append(limit)
    return min(limits or ended), "sampling"
