"""Dispatches and small whole episodes, written with the store's real verbs."""

from collections.abc import Sequence
from typing import Any

from shared.documents import Claim, DispatchedSamplingTask, SampledResponse
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus, RecordStatus, Termination
from shared.store import Store


def make_dispatch(
    record: str,
    turn: int,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    parent: int | None = None,
    shared_length: int = 0,
    version: int = 0,
    **fields: Any,
) -> DispatchedSamplingTask:
    response = SampledResponse(
        text="".join(map(chr, output_ids)),
        message={"role": "assistant", "content": ""},
        output_ids=pack_ints(output_ids),
        output_logprobs=pack_floats([-0.5 - 0.01 * i for i in output_ids]),
        finish_reason="stop",
    )
    return DispatchedSamplingTask(
        **{
            "id": f"{record}:{turn}",
            "record": record,
            "turn": turn,
            "parent": None if parent is None else f"{record}:{parent}",
            "shared_length": shared_length,
            "prompt_ids": pack_ints(prompt_ids),
            "messages": [{"role": "user", "content": "q"}],
            "tools_hash": "",
            "sampling_params": {"temperature": 1.0},
            "response": response,
            "weight_versions": [(version, len(output_ids))],
            "status": DispatchStatus.COMPLETED,
            **fields,
        }
    )


async def play_episode(
    store: Store,
    claim: Claim,
    score: float,
    *,
    version: int = 0,
    turns: int = 2,
    termination: Termination = Termination.ANSWERED,
    turn_scores: Sequence[float | None] = (),
    told: Sequence[str] = (),
) -> None:
    """An episode of some turns: [1 2] 3 4 | [5] 6 7 | [8] 9 10 …, whose tokens depend a little on the slot.

    `turn_scores` and `told` (the messages before a turn) belong to the first turns.
    """
    await store.records.start(claim, "w")
    rid, x = claim.record_id, 10 * claim.traj_id
    dispatches = []
    for t in range(turns):
        prompt = [1, 2] if t == 0 else [2 + 3 * t]
        before = {} if t == 0 else {"parent": t - 1, "shared_length": 1 + 3 * t}
        words = told[t] if t < len(told) else "q"
        message = {"role": "tool", "tool_call_id": f"c{t}{claim.traj_id}", "content": words}
        dispatches.append(
            make_dispatch(rid, t, prompt, [3 * t + 3 + x, 3 * t + 4], version=version, messages=[message], **before)
        )
    for dispatch in dispatches:
        await store.records.open_dispatch(dispatch)
        await store.records.close_dispatches([dispatch])
    earned = zip(dispatches, turn_scores, strict=False)
    await store.records.set_turn_scores({d.id: s for d, s in earned if s is not None})
    values = {
        "score": score,
        "traj": [d.id for d in dispatches],
        "num_turns": turns,
        "termination": termination.value,
        "policy_versions": [version],
    }
    await store.records.move(rid, RecordStatus.SCORED, values)
    await store.tasks.finish_slot(claim, score)
