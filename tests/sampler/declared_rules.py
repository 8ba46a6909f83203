"""A sampler's settings under a run's rules, by where each was given."""

from collections.abc import Mapping
from typing import Any

from sampler.core.settlement.current_rules import CurrentRules
from sampler.settings import SamplerConfig
from shared.documents.rules import RunRules
from shared.rules.run_rules import Rules, TemplateRules
from shared.store import Store
from shared.truncation import NAMES
from tests.sampler.episodes import MODEL


def of_sources(store: Store, **sources: Mapping[str, Any]) -> SamplerConfig:
    needed = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL}
    return SamplerConfig.from_sources({**{name: dict(given) for name, given in sources.items()}, "file": needed})


def current(store: Store, **flags: Any) -> CurrentRules:
    return CurrentRules(store, of_sources(store, flags=flags), "sampler:a:1")


async def forget_truncation(store: Store, template_digest: str = "") -> None:
    """Leave the run with rules as a version before `top_p`, `top_k` and `min_p` of training wrote them."""
    sections = Rules(prompt=TemplateRules(template_digest=template_digest)).sections()
    for name in NAMES:
        del sections["sampling"][name]
    earlier = RunRules.of("main", 1, sections, "an earlier version")
    await store.database[RunRules.collection].drop()
    assert (await store.rules.add(earlier)).by == earlier.by
