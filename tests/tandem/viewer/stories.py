"""Small runs told as a function: what the episode of a task and a slot is. Written by the store's verbs, settled by the sampler's
own settlement, trained by marks as the trainer makes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shared.documents import Claim, DispatchedSamplingTask, SampledResponse, TaskPayload, ToolCallResult
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus, RecordStatus, Termination
from shared.documents.tool_schemas import ToolSchemas
from shared.store import Store
from tests.sampler.settlement_cases import make_config
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, make_task
from tests.shared.episodes import CALCULATOR, announce, train

SCHEMAS = ToolSchemas.of([CALCULATOR])


@dataclass(frozen=True)
class Call:
    name: str = "calculator"
    arguments: dict[str, Any] = field(default_factory=lambda: {"e": "2+2"})
    result: str = "4"
    is_error: bool = False


@dataclass(frozen=True)
class Told:
    """One episode: its replies, each with the calls that it makes. `tokens`: of each reply. `failed`: infrastructure."""

    score: float = 0.0
    replies: tuple[tuple[str, tuple[Call, ...]], ...] = (("4", ()),)
    tokens: int = 3
    version: int = 0
    termination: Termination = Termination.ANSWERED
    error: str | None = None
    failed: str | None = None
    details: dict[str, Any] = field(default_factory=lambda: {"scorer": "math", "reason": "right"})
    logprob: float = -0.5
    fresh: bool = False  # every request is written anew, and begins differently


Story = Callable[[int, int], Told]


async def tell(
    store: Store,
    story: Story,
    *,
    groups: int,
    slots: int = 4,
    source: Callable[[int], str] = lambda seq: "test",
    settings: dict[str, Any] | None = None,
    steps: int = 0,
    groups_per_step: int = 1,
) -> None:
    """`steps`: as many are trained on the oldest ready groups, and announced."""
    payload = TaskPayload(query="What is 2+2?", answer="4", scorer="math")
    tasks = [make_task(seq, num_generations=slots) for seq in range(groups)]
    changed = [t.model_copy(update={"source": source(t.seq), "payload": payload}) for t in tasks]
    await store.tasks.insert_new(changed)
    await store.tool_schemas.keep(SCHEMAS)
    await announce(store, 0)
    while (held := await claim(store)) is not None:
        await _play(store, held, story(held.task.seq, held.traj_id))
    config = make_config(settings or {})
    while await settle_next(store, "w", config) is not None:
        continue
    for step in range(1, steps + 1):
        await train(store, step, groups_per_step)
        await announce(store, step)


async def _play(store: Store, held: Claim, told: Told) -> None:
    record = await store.records.start(held, "w")
    dispatches = [_dispatch(record.id, held.traj_id, k, told) for k in range(len(told.replies))]
    for dispatch in dispatches:
        await store.records.open_dispatch(dispatch)
        await store.records.close_dispatches([dispatch])
    values: dict[str, Any] = {
        "traj": [d.id for d in dispatches],
        "num_turns": len(dispatches),
        "num_tokens": told.tokens * len(dispatches),
        "termination": told.termination.value,
        "policy_versions": [told.version],
        "answer": told.replies[-1][0][:50] if told.replies else None,
        "reward_details": told.details,
    }
    if told.failed is not None:
        await store.records.move(record.id, RecordStatus.FAILED, {**values, "error": told.failed})
        await store.tasks.retry_slot(held, told.failed, delay_s=0, max_failures=1)
        return
    await store.records.move(record.id, RecordStatus.SCORED, {**values, "score": told.score})
    await store.tasks.finish_slot(held, told.score)


def ids_of(text: str, turn: int, tokens: int) -> list[int]:
    first = 20 + sum(text.encode()) % 100
    return [10 + turn, *range(first, first + tokens - 1)]


def _dispatch(record: str, slot: int, turn: int, told: Told) -> DispatchedSamplingTask:
    """Each turn continues the one before. Equal replies have equal tokens."""
    text, calls = told.replies[turn]
    prompt = [1, 2] if turn == 0 else [7, 8]
    if told.fresh:
        prompt = [100 + 10 * slot + turn, *range(1, 30)]
    output = ids_of(text, turn, told.tokens)
    before = 0 if turn == 0 or told.fresh else 2 + turn * told.tokens + 2 * (turn - 1)
    new = [{"role": "user", "content": "What is 2+2?"}]
    if turn:
        new = [
            {"role": "tool", "content": call.result, "tool_call_id": f"c{turn - 1}{n}"}
            for n, call in enumerate(told.replies[turn - 1][1])
        ]
    asked = [
        {"id": f"c{turn}{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for n, call in enumerate(calls)
    ]
    return DispatchedSamplingTask(
        id=f"{record}:{turn}",
        record=record,
        turn=turn,
        parent=None if turn == 0 or told.fresh else f"{record}:{turn - 1}",
        shared_length=before,
        prompt_ids=pack_ints(prompt),
        messages=new,
        tools_hash=SCHEMAS.id,
        sampling_params={"temperature": 1.0},
        response=SampledResponse(
            text=text,
            message={"role": "assistant", **({"tool_calls": asked} if asked else {})},
            output_ids=pack_ints(output),
            output_logprobs=pack_floats([told.logprob] * len(output)),
            finish_reason="stop",
        ),
        weight_versions=[(told.version, len(output))],
        tool_calls=[
            ToolCallResult(
                id=f"c{turn}{n}",
                name=call.name,
                arguments=call.arguments,
                result=call.result,
                is_error=call.is_error,
                duration_s=0.25,
            )
            for n, call in enumerate(calls)
        ],
        status=DispatchStatus.FORMAT_ERROR if told.error and turn == 0 else DispatchStatus.COMPLETED,
        error=told.error if turn == 0 else None,
    )
