"""Access to one policy for a sampler: template and engine pool."""

from dataclasses import dataclass

from sampler.engine.pool.engine_pool import EnginePool
from sampler.rendering.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class PolicyClient:
    template: ChatTemplate
    pool: EnginePool
