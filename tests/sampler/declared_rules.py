"""A sampler's settings under a run's rules, by where each was given."""

from collections.abc import Mapping
from typing import Any

from sampler.core.settlement.current_rules import CurrentRules
from sampler.settings import SamplerConfig
from shared.store import Store
from tests.sampler.episodes import MODEL


def of_sources(store: Store, **sources: Mapping[str, Any]) -> SamplerConfig:
    needed = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL}
    return SamplerConfig.from_sources({**{name: dict(given) for name, given in sources.items()}, "file": needed})


def current(store: Store, **flags: Any) -> CurrentRules:
    return CurrentRules(store, of_sources(store, flags=flags), "sampler:a:1")
