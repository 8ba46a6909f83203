"""Several actors in one episode, as a tenant of the sampler. Guide: docs/bring/actors.md."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sampler.actors.versions_away import UnavailableVersions
from sampler.core.settings.core_config import CoreConfig
from sampler.core.tenant import Tenant, TenantState
from shared.store import Store


class ActorTenant(Tenant):
    kinds: ClassVar[Mapping[str, str]] = {
        "parallel": "sampler.actors.parallel_sampler:ParallelSampler",
        "rounds": "sampler.actors.rounds_sampler:RoundsSampler",
    }

    def opened(self, store: Store, config: CoreConfig) -> Sequence[TenantState]:
        return [UnavailableVersions()]


TENANT = ActorTenant()
