"""The admission gate on claims: how far ahead of the trainers tasks may be opened, computed from the documents.

A task belongs to one policy, which determines its order. Its episodes yield data for every policy that took turns in them.
So a task may be opened while *each* of these policies wants data:

    groups opened and not trained yet  <  (1 + max_staleness) · groups_per_step

for every policy that still has steps to take, with its own budget. A group counts as not trained yet while it is being played,
waits for settlement, or has untrained data of the policy, and until the policy's trainer has published weights trained on it.
Groups that yielded a policy nothing, were set aside by its trainer or were skipped by the curriculum use no budget. Once
everything opened is settled, the policy with the least room has enough data for its next step, so the policies cannot
deadlock. Groups that fail repeatedly, up to one step's, count only while there is room: a retry's back-off holds no step up. A
policy whose trainer has taken its last step limits no other; it keeps playing with its final weights.

With `max_staleness` 0 the weights count as published once every engine that takes requests serves them: an episode that began on
an engine that still loads would be a step old.
"""

from collections.abc import Mapping, Sequence

from shared.documents.run import Admission, PolicyVersion
from shared.documents.states import ServiceStatus
from shared.processes.waits import Wait
from shared.store import Store
from shared.store.admission import OffPolicyBudget


async def seq_limit(
    store: Store, policies: Sequence[str], admissions: Mapping[str, Admission]
) -> tuple[int, str | Wait]:
    """The limit, and its reason. The first of `policies` owns the tasks; the others take turns in their episodes.

    All of them have a trainer: frozen policies take turns but need no data.
    """
    owner, *_ = policies
    missing = [policy for policy in policies if policy not in admissions]
    if missing:
        frozen = "it starts (the sampler's frozen_policies: those without a trainer)"
        return 0, Wait(f"the trainer of policy {missing[0]}", "it has not started", frozen)
    doing: str | Wait = "sampling"
    budgets: dict[str, OffPolicyBudget] = {}
    for policy in policies:
        newest = await store.versions.newest(policy)
        step = newest.step if newest else 0
        admission = admissions[policy]
        if newest and admission.max_staleness == 0 and (served := await _oldest_served(store, newest)) is not None:
            step, doing = served.step, _following(newest, served)
        budgets[policy] = OffPolicyBudget(step, admission.groups_after(step), failing=admission.groups_per_step)
    training = {policy: budget for policy, budget in budgets.items() if not _ended(admissions[policy], budget)}
    return await store.admission.seq_limit(owner, training or budgets), doing


async def _oldest_served(store: Store, newest: PolicyVersion) -> PolicyVersion | None:
    """The oldest version before `newest` that an engine which takes requests serves; None: all serve `newest`.

    Three kinds of engine are not counted, since they will not load it: those with `follow_every` above 1, those with
    `serve_version`, and those whose loading failed (`error`).
    """
    services = await store.services.live(newest.policy)
    behind = [
        service.version
        for service in services
        if service.status is ServiceStatus.UP
        and service.version < newest.version
        and service.follow_every == 1
        and service.serve_version is None
        and not service.error
    ]
    return await store.versions.find(newest.policy, min(behind)) if behind else None


def _following(newest: PolicyVersion, served: PolicyVersion) -> Wait:
    still = f"one serves version {served.version} (max_staleness is 0)"
    return Wait(
        f"engines that serve version {newest.version} of policy {newest.policy}", still, "its keeper has loaded them"
    )


def _ended(admission: Admission, budget: OffPolicyBudget) -> bool:
    return admission.num_steps is not None and budget.step >= admission.num_steps
