"""What a step costs, said before the first one: episodes, tokens, minutes at the speed that a probe of the engine measured.

    settings ─▶ episodes and tokens of a step, at most     once an engine is up ─▶ probe ─▶ tokens/s ─▶ minutes, at most
                                                           a dozen episodes     ─▶ their mean ─▶ minutes, about

A probe is a few short requests of arbitrary ids, beside what the engine does already: its speed is scaled to all that run there.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx

from sampler.engine.local.memory import in_gb
from sampler.settings import SamplerConfig
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.documents.step_cost import StepCost
from shared.errors import DataError, TandemError
from shared.processes.machine_memory import machine_memory_bytes
from shared.store import Store
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from tandem.launch.child_settings import sampler_settings
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig
from tandem.launch.trainer_memory import predicted, trained_as

PROBE_REQUESTS, PROBE_TOKENS, PROBE_S = 8, 32, 120.0
PROBE_IDS = list(range(10, 42))
ASK_S = 1.0  # shortest interval of queries
LAST_S = 3600.0
FIRST_EPISODES = 12  # their mean says something


def tokens_of_episode(sampler: SamplerConfig) -> int:
    """The most that the model can sample in one: its replies, within the context that they share with all else."""
    budget = sampler.budget
    return min(budget.max_turns * budget.max_new_tokens, budget.max_tokens)


def memory_warning(config: LaunchConfig) -> str | None:
    """Where training on processors needs more memory than this machine has; None: it fits, or is not known."""
    if not config.trains or (config.placed and config.placed.placement.trainer):
        return None
    settings, machine = trained_as(config.trainer_settings), machine_memory_bytes()
    try:
        parts = predicted(ROOT / config.model, settings)
    except DataError:
        return None  # the trainer says what is wrong with its model
    if parts.total <= machine:
        return None
    smaller = "quantize the base (base_quantization)" if settings.lora_rank else "set lora_rank"
    return (
        f"the trainer of policy {config.policy} needs about {in_gb(parts.total)} (weights "
        f"{in_gb(parts.weights + parts.adapters)}, gradients {in_gb(parts.gradients)}, states of {settings.optim} "
        f"{in_gb(parts.optimizer)}), and this machine has {in_gb(machine)}: {smaller}, train a smaller model, or use a GPU"
    )


class ProbeRefused(TandemError):
    """An engine answers the probe with an error: its speed cannot be measured."""


@asynccontextmanager
async def costs_shown(
    store: Store, policies: Sequence[LaunchConfig], show: Callable[[str], None]
) -> AsyncIterator[None]:
    """Meanwhile, in the background, the machine that leads a run says what a step costs. Nothing waits for it."""
    owner = policies[0]
    if not owner.machines.is_main or owner.only_evaluate or not owner.trains:
        yield
        return
    for warning in filter(None, map(memory_warning, policies)):
        show(warning)
    showing = asyncio.create_task(show_costs(store, owner, sampler_settings(policies), show), name="costs")
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def show_costs(store: Store, config: LaunchConfig, sampler: SamplerConfig, show: Callable[[str], None]) -> None:
    """Show the sizes once the trainer has stored them, the minutes once an engine was probed, and again by the first episodes.
    Each is stored with the run."""
    cost = await _size(store, config, sampler)
    await store.runs.note_step_cost(config.policy, cost)
    show(cost.size_text())
    try:
        speed = await _speed(store, config.policy, sampler.engines.engine_api_key)
    except ProbeRefused as exc:
        show(f"the speed of the engines is not measured, so the minutes of a step are not known: {exc}")
        return
    for mean in (None, _mean_tokens(store)):
        values = {"tokens_per_s": speed, "mean_tokens": None if mean is None else await mean}
        cost = cost.model_copy(update=values)
        await store.runs.note_step_cost(config.policy, cost)
        show(cost.time_text() or "")


async def _size(store: Store, config: LaunchConfig, sampler: SamplerConfig) -> StepCost:
    timer = PollTimer(store.signals, [Signal.RUN], ASK_S)
    while True:
        run = await store.runs.get()
        if run is not None and config.policy in run.admission:
            groups = run.admission[config.policy].groups_per_step
            each = tokens_of_episode(sampler)
            return StepCost(groups=groups, generations=config.num_generations, tokens_each=each)
        await timer.pause()


async def _speed(store: Store, policy: str, api_key: str | None) -> float:
    """Raises ProbeRefused."""
    timer = PollTimer(store.signals, [Signal.SERVICES], ASK_S)
    while True:
        measured = await probe(await store.services.live(policy), api_key)
        if measured is not None:
            return measured
        await timer.pause()


async def _mean_tokens(store: Store) -> float:
    """Sampled tokens of an episode, once a dozen have ended."""
    timer = PollTimer(store.signals, [Signal.DATA], ASK_S)
    while True:
        records, tokens = await store.questions.finished_within(LAST_S)
        if records >= FIRST_EPISODES and tokens:
            return tokens / records
        await timer.pause()


async def probe(services: Sequence[InferenceService], api_key: str | None = None) -> float | None:
    """Tokens/s of all engines that are up; None: none is, or none answers a probe. Raises ProbeRefused."""
    up = [service for service in services if service.status is ServiceStatus.UP]
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(timeout=PROBE_S, trust_env=False, headers=headers) as client:
        speeds = await asyncio.gather(*(_probe_one(client, service) for service in up))
    return sum(speed for speed in speeds if speed) or None


async def _probe_one(client: httpx.AsyncClient, service: InferenceService) -> float | None:
    count = max(1, min(PROBE_REQUESTS, service.capacity))
    params = {"max_new_tokens": PROBE_TOKENS, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": PROBE_IDS, "sampling_params": params}
    began = time.monotonic()
    try:
        answers = await asyncio.gather(*(client.post(f"{service.url}/generate", json=body) for _ in range(count)))
    except httpx.HTTPError:
        return None
    refused = [answer for answer in answers if answer.is_client_error]
    if refused:
        raise ProbeRefused(
            f"{service.url} answered HTTP {refused[0].status_code} to a short request; expected 200. An engine with a key needs "
            "engine_api_key_var in the sampler's settings"
        )
    if any(answer.status_code != httpx.codes.OK for answer in answers):
        return None
    own = count * PROBE_TOKENS / max(time.monotonic() - began, 1e-3)
    return own * (service.running + count) / count
