"""What a sampler needs to ask one policy for a turn."""

from dataclasses import dataclass

from sampler.engine.pool.engine_pool import EnginePool
from sampler.rendering.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class PolicyClient:
    template: ChatTemplate
    pool: EnginePool
