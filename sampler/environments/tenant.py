"""Environments as a tenant of the sampler. Guide: docs/bring/environments.md."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sampler.core.settings.core_config import CoreConfig
from sampler.core.tenant import Tenant, TenantState
from sampler.environments.choosing import Environments
from sampler.environments.play_config import EnvironmentPlayConfig
from shared.store import Store


class EnvironmentTenant(Tenant):
    kinds: ClassVar[Mapping[str, str]] = {
        "environment": "sampler.environments.sampler:EnvironmentSampler",
        "game": "sampler.environments.game_sampler:GameSampler",
    }

    def opened(self, store: Store, config: CoreConfig) -> Sequence[TenantState]:
        return [Environments(store.environments.live, config.part(EnvironmentPlayConfig).environments)]


TENANT = EnvironmentTenant()
