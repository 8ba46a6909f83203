"""Small complete runs for tests, written by the store's verbs: two turns with a tool call, and a branch without it.

0  p p p | a a b           tree  0 1 2 3 4 5 ─ 6 7 ─ 8 9        turn 0, tool result, turn 1
1  (6 shared) t t | c d                    └── 10 11            turn 2: shares 5, asks anew, replies
2  (5 shared) s | e                                             (of turn 0's reply only the first two)
"""

from typing import Any

import numpy as np

from shared.documents import (
    Claim,
    DataClaim,
    DBRecordData,
    DispatchedSamplingTask,
    Record,
    SampledResponse,
    ToolCallResult,
)
from shared.documents.packed import pack_floats, pack_ints, unpack_floats, unpack_ints
from shared.documents.run import PolicyVersion, TrainedStep
from shared.documents.states import RecordStatus, Termination
from shared.documents.tool_schemas import ToolSchemas
from shared.documents.trainer_logprobs import TokenMark, TrainerLogprobs, TurnLogprobs, trainer_logprobs_id
from shared.store import Store
from shared.tokens.flatten import data_fields
from shared.tokens.record_tree import RecordTree, TreeDispatch
from tandem.traces.spans import Episode
from tests.shared.builders import claim, import_tasks, make_task

RECORD = "main:train:0:t0:0:1"
ADVANTAGES = (1.0, -1.0)
PARAMETERS = {"type": "object", "properties": {"e": {"$ref": "#/$defs/a.b"}}, "$defs": {"a.b": {"type": "string"}}}
CALCULATOR = {"type": "function", "function": {"name": "calculator", "description": "Adds.", "parameters": PARAMETERS}}
SCHEMAS = ToolSchemas.of([CALCULATOR])


def make_dispatch(
    record: str, index: int, *, shared: int, parent: int | None, prompt: list[int], output: list[int]
) -> DispatchedSamplingTask:
    """Answered by version 3 and, in its last token, version 4."""
    n = len(output)
    call = ToolCallResult(name="calculator", arguments={"e": "2+2"}, result="[4]", is_error=False, duration_s=0.25)
    return DispatchedSamplingTask(
        id=f"{record}:{index}",
        record=record,
        turn=index,
        parent=None if parent is None else f"{record}:{parent}",
        shared_length=shared,
        prompt_ids=pack_ints(prompt),
        messages=[{"role": "user" if index == 0 else "tool", "content": f"message [{index}]"}],
        tools_hash=SCHEMAS.id,
        sampling_params={"temperature": 1.0},
        service="http://engine:1",
        response=SampledResponse(
            text=f"reply {index}",
            message={"role": "assistant", "content": f"reply {index}"},
            output_ids=pack_ints(output),
            output_logprobs=pack_floats([-0.1 * t for t in output]),
            finish_reason="stop",
        ),
        weight_versions=[(3, n - 1), (4, 1)] if n > 1 else [(4, 1)],
        tool_calls=[call] if index == 0 else [],
        status="completed",
        usage={"prompt": shared + len(prompt), "cached": shared, "completion": n},
    )


def make_dispatches(record: str) -> list[DispatchedSamplingTask]:
    return [
        make_dispatch(record, 0, shared=0, parent=None, prompt=[1, 2, 3], output=[4, 5, 6]),
        make_dispatch(record, 1, shared=6, parent=0, prompt=[7, 8], output=[9, 10]),
        make_dispatch(record, 2, shared=5, parent=1, prompt=[11], output=[12]),
    ]


def make_episode_tree(record: str, advantage: float) -> RecordTree:
    """What `make_dispatches` comes to, written down by hand."""
    ids = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], dtype=np.int32)
    sources = np.array([-1, -1, -1, 0, 0, 0, -1, -1, 1, 1, -1, 2], dtype=np.int32)
    logprobs = np.array([-0.1 * t for t in ids.tolist()], dtype=np.float32)
    return RecordTree(
        record_id=record,
        token_ids_N=ids,
        parents_N=np.array([-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 10], dtype=np.int32),
        dispatches_N=sources,
        logprobs_N=np.where(sources >= 0, logprobs, np.float32(0)),
        versions_N=np.array([-1, -1, -1, 3, 3, 4, -1, -1, 3, 4, -1, 4], dtype=np.int32),
        dispatches=tuple(TreeDispatch(f"{record}:{k}", k, advantage) for k in range(3)),
    )


async def play(store: Store, held: Claim, score: float) -> None:
    """An episode from its claim to its score."""
    values = {**await _asked(store, held), "score": score}
    await store.records.move(held.record_id, RecordStatus.SCORED, values)
    await store.tasks.finish_slot(held, score)


async def play_and_wait(
    store: Store, held: Claim, score_without: float | None = None, deadline_s: float = 86_400
) -> str:
    """An episode whose score comes later; returns its record's id."""
    without = None
    if score_without is not None:
        without = {"score": score_without, "policy_scores": {}, "reward_details": {"scorer": "math"}}
    values = {**await _asked(store, held), "without_feedback": without}
    await store.records.move(held.record_id, RecordStatus.COMPLETED, values)
    await store.tasks.await_feedback(held, deadline_s, score_without=score_without)
    return held.record_id


async def _asked(store: Store, held: Claim) -> dict[str, Any]:
    """The requests of an episode, and what its record says of them."""
    record = await store.records.start(held, "w")
    dispatches = make_dispatches(record.id)
    await store.tool_schemas.keep(SCHEMAS)
    for dispatch in dispatches:
        await store.records.open_dispatch(dispatch)
        await store.records.close_dispatches([dispatch])
    return {
        "traj": [d.id for d in dispatches],
        "num_turns": 3,
        "num_tokens": 6,
        "answer": "4",
        "termination": Termination.ANSWERED.value,
        "policy_versions": [3, 4],
    }


async def settle(store: Store) -> None:
    """Every completed group: the first slot's advantage is +1, the second's -1."""
    while (task := await store.tasks.claim_settlement("s", policy="main", lease_s=60)) is not None:
        records = [slot.record_id for slot in task.slots if slot.record_id and slot.score is not None]
        advantages = dict(zip(records, ADVANTAGES, strict=False))
        await store.data.write_group(
            [
                DBRecordData(
                    id=rid,
                    record=rid,
                    task=task.id,
                    group_size=len(records),
                    seq=task.seq,
                    policy=task.policy,
                    split=task.split,
                    source=task.source,
                    reward=1.0,
                    **data_fields(make_episode_tree(rid, advantage)),
                )
                for rid, advantage in advantages.items()
            ]
        )
        await store.records.set_advantages({f"{rid}:{k}": a for rid, a in advantages.items() for k in range(3)})
        await store.records.settle_group(task.id, {rid: RecordStatus.READY for rid in records}, advantages, {})
        await store.tasks.finish_settlement(task, "ready", abandoned=False, data_of=[task.policy])


async def announce(store: Store, step: int) -> PolicyVersion:
    return await store.versions.announce("main", step, f"/weights/{step}", {})


async def train(store: Store, step: int, groups: int = 1, *, max_trained_count: int = 1) -> list[str]:
    """One step on the oldest groups; returns the records."""
    borrowed = DataClaim(trainer_generation=1, step=step)
    ready = await store.data.ready_groups("main", groups)
    for group in ready:
        await store.data.claim(group["records"], borrowed)
    taken = [(group["_id"], len(group["records"])) for group in ready]
    await store.steps.add(
        TrainedStep(id=f"main:{step}:1", policy="main", step=step, trainer_generation=1, groups=taken)
    )
    taken_ids = [record for group in ready for record in group["records"]]
    kept = [await _logprobs(store, data, step) for data in await store.data.load(taken_ids)]
    await store.trainer_logprobs.keep([document for document in kept if document is not None])
    return await store.data.commit_step("main", borrowed, max_trained_count=max_trained_count)


async def _logprobs(store: Store, data: DBRecordData, step: int) -> TrainerLogprobs | None:
    """Each token 0.1 nats above the engine's; the last one of a turn is clipped."""
    dispatches = (await store.records.dispatches_of([data.record]))[data.record]
    turns = []
    for one in dispatches:
        if one.response is None:
            continue
        engine = unpack_floats(one.response.output_logprobs)
        marks = [TokenMark.HAS_LOSS] * (len(engine) - 1) + [TokenMark.HAS_LOSS | TokenMark.CLIPPED_HIGH]
        first = one.shared_length + len(unpack_ints(one.prompt_ids))
        turns.append(TurnLogprobs(turn=one.turn, first=first, logprobs=pack_floats(engine + 0.1), marks=bytes(marks)))
    if not turns:
        return None
    return TrainerLogprobs(
        id=trainer_logprobs_id(data.id, step, 1),
        data=data.id,
        record=data.record,
        policy=data.policy,
        step=step,
        trainer_generation=1,
        turns=turns,
        largest_difference=0.1,
        largest_turn=turns[-1].turn,
        largest_place=turns[-1].first,
    )


async def whole_run(store: Store, tasks: int = 2) -> list[str]:
    """Tasks of two slots each, played, settled, the first group trained in step 1 and announced; returns all records."""
    await import_tasks(store, tasks, num_generations=2)
    while (held := await claim(store)) is not None:
        await play(store, held, float(held.traj_id))
    await settle(store)
    await train(store, 1)
    for step in range(2):
        await announce(store, step)
    return [f"main:train:0:t{seq}:{k}:1" for seq in range(tasks) for k in range(2)]


def an_episode(**values: object) -> Episode:
    """Of `RECORD`, with these fields of its record."""
    task = make_task(0)
    record = Record(
        id=RECORD, task=task.id, traj_id=0, attempt=1, tid="t0", split="train", policy="main", source="s", worker="w"
    ).model_copy(update=values)
    return Episode(record, task, make_dispatches(RECORD), [1], {})
