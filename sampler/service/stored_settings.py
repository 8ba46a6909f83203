"""What a process of samplers ran with, for later inspection: its settings, the run's rules, and the agents'."""

from collections.abc import Mapping
from typing import Any

from sampler.config import SamplerConfig
from shared.rules.groups import SettlementRules
from shared.store import Store


async def store_settings(
    store: Store, kind: str, worker: str, config: SamplerConfig, rules: SettlementRules, agents: Mapping[str, Any]
) -> None:
    """`rules`: in place of the process's own, which settle nothing."""
    settings = config.snapshot() | rules.model_dump(mode="json", exclude={"untrained_policies"})
    await store.runs.save_config(kind, settings)
    await store.settings.keep(kind, settings | ({"agents": dict(agents)} if agents else {}), worker)
