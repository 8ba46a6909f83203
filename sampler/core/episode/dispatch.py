"""Makes the document of one request to the engine, and the values that its reply adds."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.core.engines.pool.progress import EngineReply
from sampler.core.engines.pool.turn_sources import Source
from sampler.core.episode.threads import Reply
from sampler.core.errors import EngineContractBroken, UnusableTask
from sampler.core.rendering.recorded import Parent
from sampler.core.rendering.reply_message import Message, beyond_text
from sampler.core.rendering.view import View
from sampler.core.settings.core_config import CoreConfig
from shared.documents import DispatchedSamplingTask, SampledResponse, Task
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.routed_experts import pack_experts
from shared.documents.states import BranchCause, DispatchStatus
from shared.names import TRAIN_SPLIT
from shared.outside_text import MAX_ERROR_CHARS, clipped
from shared.rules.temperatures import temperature_problem
from shared.store import Store
from shared.truncation import Truncation


# 8 parameters: one document is written at once, of what its turn knows
def new_dispatch(
    record: str,
    turn: int,
    view: View,
    messages: Sequence[Message],
    parent: Parent,
    cause: BranchCause,
    *,
    while_open: list[int],
    params: Mapping[str, Any],
) -> DispatchedSamplingTask:
    """The request whose prompt is the view's: only what it does not share with its parent is stored."""
    return DispatchedSamplingTask(
        id=f"{record}:{turn}",
        record=record,
        policy=view.policy,
        thread=view.thread,
        turn=turn,
        while_open=while_open,
        parent=parent.name,
        shared_length=parent.shared,
        branch_cause=cause,
        prompt_ids=pack_ints(view.context.ids[parent.shared :]),
        images=[image.document(parent.shared) for image in view.context.images if image.first >= parent.shared],
        messages=list(messages),
        tools_hash=view.tools_hash,
        sampling_params=dict(params),
        status=DispatchStatus.RUNNING,
    )


def sampling_params(config: CoreConfig, task: Task, end_ids: Sequence[int]) -> dict[str, Any]:
    """Training uses no penalties: the trainer could not compute their log-probs. A fork's requests have those of its origin.
    Raises UnusableTask for a training task at a temperature that nothing can be trained at."""
    if task.payload.fork is not None:
        return task.payload.fork.sampling_params
    is_training = task.split == TRAIN_SPLIT
    temperature = config.sampling.temperature
    if not is_training and config.sampling.eval_temperature is not None:
        temperature = config.sampling.eval_temperature
    if task.payload.temperature is not None:
        temperature = task.payload.temperature
    if is_training and (problem := temperature_problem(temperature)) is not None:
        raise UnusableTask(f"task {task.id}: {problem}")
    return {
        "temperature": temperature,
        "top_p": 1.0,
        **config.sampling.truncation.model_dump(exclude_defaults=True),
        **({} if is_training else config.sampling.eval_sampling.model_dump(exclude_none=True)),
        "stop_token_ids": list(end_ids),
        "skip_special_tokens": False,
    }


def check_distribution(reply: EngineReply, dispatch: DispatchedSamplingTask) -> None:
    """Of a reply that is trained. Raises EngineContractBroken if its log-probs are not of the distribution that it was drawn
    from."""
    truncation, generation = Truncation.of(dispatch.sampling_params), reply.generation
    of_the_whole = bool(generation.output_ids) and not generation.truncated_logprobs
    if of_the_whole and not truncation.keeps_all:
        raise EngineContractBroken(
            f"{generation.url}: {truncation} in training, and the log-probs of the reply to {dispatch.id} are those before "
            "truncation; expected an engine that reports them after it (local or vLLM; SGLang does not), or a run without"
        )


def experts_from(parent: Parent) -> int:
    """Position of the first token whose experts its request says first: the last one that it shares, which nothing was sampled
    behind."""
    return max(0, parent.shared - 1)


async def keep_experts(store: Store, reply: EngineReply, parent: Parent) -> dict[str, Any]:
    """Store what the reply says of experts, before the request names it; returns the field of the dispatch."""
    experts = reply.generation.experts
    if experts is None:
        return {}
    packed = await asyncio.to_thread(pack_experts, experts, experts_from(parent))
    await store.routed_experts.keep(packed)
    return {"routed_experts": packed.described}


def answer_values(reply: EngineReply, source: Source, message: Reply) -> dict[str, Any]:
    """The fields of a dispatch that its reply sets."""
    generation = reply.generation
    return {
        "status": DispatchStatus.FORMAT_ERROR if message.parsed.errors else DispatchStatus.COMPLETED,
        "error": clipped("; ".join(message.parsed.errors), MAX_ERROR_CHARS) or None,
        "service": generation.url,
        "engines": reply.engines,
        "sampled_by": source.policy,
        "continuations": len(reply.continuations),
        "weight_versions": [(version, n) for version, n in generation.version_runs],
        "usage": {
            "prompt": generation.prompt_tokens,
            "cached": generation.cached_tokens,
            "completion": len(generation.output_ids),
        },
        "response": SampledResponse(
            text=message.text,
            message=beyond_text(message.text, message.message),
            output_ids=pack_ints(generation.output_ids),
            output_logprobs=pack_floats(generation.logprobs),
            finish_reason=generation.finish_reason,
            in_reasoning=message.in_reasoning,
            truncated_logprobs=generation.truncated_logprobs,
        ),
    }
