"""Settles groups by the settings that a test names: it declares them as a number of the run's rules, as a process does."""

from sampler.core.settlement import settle as settlement
from sampler.core.settlement.declared_rules import declared
from sampler.settings import SamplerConfig
from shared.documents import Task
from shared.documents.rules import FIRST, RunRules
from shared.store import Store
from tests.sampler.episodes import TEMPLATE


async def rules_number(store: Store, config: SamplerConfig) -> int:
    """The number of these rules, which are added where the run has none like them."""
    known = await store.rules.all(config.policy)
    sections = declared(config, template_digest=TEMPLATE.digest).sections()
    number = next((one.number for one in known if one.sections == sections), None)
    if number is None:
        number = known[0].number + 1 if known else FIRST
        await store.rules.add(RunRules.of(config.policy, number, sections, "test"))
    return number


async def settle(store: Store, task: Task, config: SamplerConfig) -> None:
    await settlement.settle(store, task.model_copy(update={"rules": await rules_number(store, config)}))


async def settle_next(store: Store, worker: str, config: SamplerConfig) -> Task | None:
    """Settle one completed group that no group scorer has to score."""
    task = await settlement.claim_next(store, worker, config.policy)
    if task is not None:
        await settle(store, task, config)
    return task
