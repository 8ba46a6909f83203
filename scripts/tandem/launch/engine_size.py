"""What a local engine that the launcher starts shall hold, by the limits of the samplers that will ask it: its context, its
requests at once, and the memory that it takes with them.

    context_length        the samplers' max_tokens, at most the model's own context and what the cache holds
    max_running_requests  the episodes of this machine's samplers at once, at most 64
    kv_cache_bytes        the keeper's setting, else a quarter of the machine's memory
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sampler.core.engines.pool.contexts import RESERVE
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.local.memory import (
    MAX_RUNNING,
    CachePlan,
    CacheShape,
    CacheTooSmall,
    plan_cache,
    weights_bytes,
)
from sampler.settings import SamplerConfig
from shared.errors import ConfigError
from shared.files.json_file import read_json_file
from tandem.launch.child_settings import keeper_settings, sampler_settings
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig

FEWEST_RUNNING = 8  # as caches of earlier episodes, and for who else asks


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """`plan`: None for a model whose config.json does not say its shape. `max_tokens`: of the samplers."""

    flags: list[str]
    plan: CachePlan | None
    weights_bytes: int
    max_tokens: int

    def lines(self) -> list[str]:
        """For people, at the start."""
        if self.plan is None:
            return []
        lines = [f"local engine: {self.plan.text(self.weights_bytes)}"]
        most = self.plan.context - RESERVE
        if most < self.max_tokens:
            why = "that is the model's context"
            if self.plan.is_shortened:
                why = f"that is what kv_cache_bytes holds, of {self.plan.full_context}; raise it, or lower max_tokens"
            lines.append(f"episodes end at {most} tokens (length_limit), before max_tokens {self.max_tokens}: {why}")
        return lines


def engine_size(policies: Sequence[LaunchConfig], config: LaunchConfig) -> PlannedEngine | None:
    """Of the policy of `config`; None if this machine starts no local engine for it. Raises ConfigError."""
    starts_here = config.starts_engine and not (config.placed and config.placed.placement.engines)
    keepers = {kind: keeper_settings(config, kind) for kind in config.kinds if starts_here}
    keeper = keepers.get("local")
    if keeper is None or keeper.engine_command or keeper.engine_url:
        return None
    sampler = sampler_settings(policies)
    context = keeper.local.context_length or sampler.budget.max_tokens + RESERVE
    running = keeper.local.max_running_requests or _running(policies[0], sampler)
    plan = _plan(config, keeper, context, running)
    values = {
        "context_length": None if keeper.local.context_length else plan.context if plan else context,
        "max_running_requests": None if keeper.local.max_running_requests else running,
    }
    flags = [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]
    return PlannedEngine(flags, plan, weights_bytes(ROOT / config.model), sampler.budget.max_tokens)


def _running(owner: LaunchConfig, sampler: SamplerConfig) -> int:
    """Other machines' samplers may ask it too, unless this one is alone."""
    if not owner.machines.is_alone or not owner.num_samplers:
        return MAX_RUNNING
    return max(FEWEST_RUNNING, min(MAX_RUNNING, owner.num_samplers * sampler.queue.max_concurrent_episodes))


def _plan(config: LaunchConfig, keeper: KeeperConfig, context: int, running: int) -> CachePlan | None:
    described = read_json_file(ROOT / config.model / "config.json", "a model's configuration", keys_once=False)
    try:
        shape = CacheShape.of(described)
    except (KeyError, TypeError):  # a model that describes itself otherwise: the engine knows it
        return None
    try:
        return plan_cache(
            shape,
            kv_cache_bytes=keeper.local.kv_cache_bytes,
            max_running=running,
            context_length=context,
            may_shorten=keeper.local.context_length is None,
        )
    except CacheTooSmall as exc:
        raise ConfigError(f"the local engine of policy {config.policy}: {exc}") from exc
