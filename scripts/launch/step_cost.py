"""What a step costs, said before the first one: episodes, tokens, minutes at the speed that a probe of the engine measured.

    settings ─▶ episodes and tokens of a step, at most     once an engine is up ─▶ probe ─▶ tokens/s ─▶ minutes, at most
                                                           a dozen episodes     ─▶ their mean ─▶ minutes, about

A probe is a few short requests of arbitrary ids, beside what the engine does already: its speed is scaled to all that run there.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from sampler.config import SamplerConfig
from sampler.engine.local.memory import weights_bytes
from scripts.launch.engine_size import sampler_settings
from scripts.launch.settings import ROOT, LaunchConfig
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.machine_memory import machine_memory_bytes
from shared.store import Store

PROBE_REQUESTS, PROBE_TOKENS, PROBE_S = 8, 32, 120.0
PROBE_IDS = list(range(10, 42))
LONG_STEP_S = 600.0
ASK_S = 1.0
LAST_S = 3600.0
FIRST_EPISODES = 12  # their mean says something
TRAINED_COPIES = 4  # of the weights in float32: they, their gradients, two moments of AdamW
CHEAPER = "fewer num_generations or groups_per_step, a smaller max_new_tokens, a smaller model or a GPU make it shorter"


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of one policy's step. `tokens_each`: that an episode may sample."""

    groups: int
    generations: int
    tokens_each: int

    @property
    def episodes(self) -> int:
        return self.groups * self.generations

    def size_text(self) -> str:
        return (
            f"a step is {self.groups} groups x {self.generations} = {self.episodes:,} episodes of at most {self.tokens_each:,} "
            f"sampled tokens: {self.episodes * self.tokens_each:,} tokens at worst"
        )

    def time_text(self, tokens_per_s: float, mean_tokens: float | None = None) -> str:
        """`mean_tokens`: of the episodes so far; None: at worst."""
        seconds = self.episodes * (mean_tokens or self.tokens_each) / tokens_per_s
        mean = f"{mean_tokens:,.0f} tokens an episode so far" if mean_tokens else "at worst"
        advice = f": {CHEAPER}" if seconds > LONG_STEP_S else ""
        speed = f"{tokens_per_s:,.0f}"
        return f"the engines sample {speed} tokens/s: about {spoken(seconds)} of sampling for a step, {mean}{advice}"


def tokens_of_episode(sampler: SamplerConfig) -> int:
    """The most that the model can sample in one: its replies, within the context that they share with all else."""
    return min(sampler.max_turns * sampler.max_new_tokens, sampler.max_tokens)


def spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def memory_warning(config: LaunchConfig) -> str | None:
    """Where full training on processors needs more memory than this machine has; None: it fits, or is not known."""
    if not config.trains or (config.placed and config.placed.placement.trainer) or _has_adapter(config):
        return None
    needed, machine = TRAINED_COPIES * weights_bytes(ROOT / config.model), machine_memory_bytes()
    if needed <= machine:
        return None
    return (
        f"the trainer of policy {config.policy} needs about {needed / 1e9:.1f} GB (weights, gradients and two moments of AdamW "
        f"in float32), and this machine has {machine / 1e9:.1f} GB: set lora_rank, train a smaller model, or use a GPU"
    )


def _has_adapter(config: LaunchConfig) -> bool:
    return any("lora_rank" in word for word in config.service_flags.get("trainer", ()))


@asynccontextmanager
async def costs_told(
    store: Store, policies: Sequence[LaunchConfig], tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Meanwhile, in the background, the machine that leads a run says what a step costs. Nothing waits for it."""
    owner = policies[0]
    if not owner.is_main or owner.only_evaluate or not owner.trains:
        yield
        return
    for warning in filter(None, map(memory_warning, policies)):
        tell(warning)
    telling = asyncio.create_task(tell_costs(store, owner, sampler_settings(policies), tell), name="costs")
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def tell_costs(store: Store, config: LaunchConfig, sampler: SamplerConfig, tell: Callable[[str], None]) -> None:
    """Say the sizes once the trainer has stored them, the minutes once an engine was probed, and again by the first episodes."""
    cost = await _size(store, config, sampler)
    tell(cost.size_text())
    speed = None
    while speed is None:
        speed = await probe(await store.services.live(config.policy))
        await asyncio.sleep(ASK_S)
    tell(cost.time_text(speed))
    mean = None
    while mean is None:
        await asyncio.sleep(ASK_S)
        mean = await _mean_tokens(store)
    tell(cost.time_text(speed, mean))


async def _size(store: Store, config: LaunchConfig, sampler: SamplerConfig) -> StepCost:
    while True:
        run = await store.runs.get()
        if run is not None and config.policy in run.admission:
            groups = run.admission[config.policy].groups_per_step
            return StepCost(groups, config.num_generations, tokens_of_episode(sampler))
        await asyncio.sleep(ASK_S)


async def _mean_tokens(store: Store) -> float | None:
    """Sampled tokens of an episode, of those that have ended; None: too few."""
    records, tokens = await store.questions.finished_within(LAST_S)
    return tokens / records if records >= FIRST_EPISODES and tokens else None


async def probe(services: Sequence[InferenceService]) -> float | None:
    """Tokens/s of all engines that are up; None: none is, or none answers a probe."""
    up = [service for service in services if service.status is ServiceStatus.UP]
    async with httpx.AsyncClient(timeout=PROBE_S, trust_env=False) as client:
        speeds = await asyncio.gather(*(_probe_one(client, service) for service in up))
    return sum(found for found in speeds if found) or None


async def _probe_one(client: httpx.AsyncClient, service: InferenceService) -> float | None:
    count = max(1, min(PROBE_REQUESTS, service.capacity))
    params = {"max_new_tokens": PROBE_TOKENS, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": PROBE_IDS, "sampling_params": params}
    began = time.monotonic()
    try:
        answers = await asyncio.gather(*(client.post(f"{service.url}/generate", json=body) for _ in range(count)))
    except httpx.HTTPError:
        return None
    if any(answer.status_code != httpx.codes.OK for answer in answers):
        return None  # it needs a key that the launcher has not: the first episodes say it
    own = count * PROBE_TOKENS / max(time.monotonic() - began, 1e-3)
    return own * (service.running + count) / count
