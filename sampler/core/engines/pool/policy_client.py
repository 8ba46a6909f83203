"""Access to one policy for a sampler: template and engine pool. `version`: the only one that may answer (a pinned actor)."""

from dataclasses import dataclass

from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.rendering.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class PolicyClient:
    template: ChatTemplate
    pool: EnginePool
    version: int | None = None
