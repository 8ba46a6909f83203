"""Nothing that comes from outside ends a sampler: each attack is an answer, or a recorded failure with a bounded reason."""

import json
import re
from pathlib import Path
from typing import Any

import httpx

from sampler.core.episode.episode import MAX_SLOT_ERROR_CHARS, play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.scorers import Score, ScoringRequest, register_scorer
from shared.documents import Record, Slot, TaskPayload, ToolCallResult
from shared.documents.states import DispatchStatus, RecordStatus, SlotStatus, Termination
from shared.outside_text import MAX_ERROR_CHARS
from shared.store import Store
from tests.sampler.episodes import TEMPLATE, ended, resources, samples, says
from tests.sampler.tool_servers.hostile import ANSWERS, LISTINGS
from tests.shared.builders import claim, make_task

HOSTILE = str(Path(__file__).parent / "tool_servers" / "hostile.py")
ANSWERED = {
    *("long_error", "unknown_blocks", "faulty_blocks", "long_rpc_error", "code_of_thirty_digits", "half_an_emoji"),
    *("control_characters", "large_numbers", "no_numbers", "keys_of_the_database", "deep", "long_link", "long_kinds"),
    *("twice", "notices"),
}


LISTED = {"long_description", "deep_schema", "strange_names", "names_twice"}

UNFIT: dict[str, Any] = {
    "too_large": {"t": "x" * 17_000_000},
    "too_deep": json.loads('{"a":' * 250 + "1" + "}" * 250),
    "large_number": {"n": 2**70},
    "number_as_key": {1: 2},
    "no_such_type": {"s": {1, 2}},
    "half_an_emoji": {"t": "\ud83d"},
    "nul_in_a_key": {"a\x00b": 1},
}
HELD: dict[str, Any] = {
    "large_number": {"n": "1180591620717411303424"},
    "number_as_key": {"1": 2},
    "no_such_type": {"s": [1, 2]},
    "half_an_emoji": {"t": "\ufffd"},
    "nul_in_a_key": {"a\ufffdb": 1},
    "fitting": {"$set": {"a.b": "$x"}, "": "inf"},
}
FAULTY: dict[str, Any] = {
    "no_number": None,
    "a_text": "1",
    "not_finite": float("nan"),
    "beyond_a_double": 10**400,
    "no_details": Score(1.0, details=5),  # type: ignore[arg-type]  # as own code may return
    "long_words": ValueError("w" * 20_000_000),
    "half_a_word": ValueError("\ud83d"),
    "the_end": SystemExit("x"),
}


@register_scorer("outside_data")
async def outside_data(request: ScoringRequest) -> Score:
    kind = request.query.removeprefix("KIND ")
    if kind in UNFIT:
        return Score(1.0, details=UNFIT[kind])
    found = FAULTY.get(kind, Score(1.0, details={"$set": {"a.b": "$x"}, "": float("inf")}))
    if isinstance(found, BaseException):
        raise found
    return found if isinstance(found, Score) else Score(found)


class Overflowing(AsyncSampler):
    """Its only turn has a tool result that no document holds."""

    async def run(self) -> Termination:
        await self.create_chat_completions([{"role": "user", "content": self.task.payload.query}])
        self.add_tool_calls(
            [ToolCallResult(name="big", arguments={}, result="x" * 17_000_000, is_error=False, duration_s=0)]
        )
        return Termination.ANSWERED


class Careless(AsyncSampler):
    """Passes on what a world and a tool of its own said, as they said it."""

    async def run(self) -> Termination:
        question = [{"role": "user", "content": "half \ud83d"}]
        assert self.prompt_tokens(question) > 0
        turn = await self.create_chat_completions(question)
        call = ToolCallResult(name="t", arguments={"n": 2**64}, result="\ud83d", is_error=False, duration_s=0)
        self.add_tool_calls([call], turn=turn)
        return Termination.ANSWERED


async def attacked(request: httpx.Request) -> httpx.Response:
    """An engine that calls the tool with the kind that the question names, and answers once it has read the result."""
    prompt = TEMPLATE.decode(json.loads(request.content)["input_ids"])
    kind = re.findall(r"KIND (\w+)", prompt)[-1]
    call = json.dumps({"name": "attack", "arguments": {"kind": kind}})
    said = "<answer>4</answer>" if "<tool_response>" in prompt else f"<tool_call>\n{call}\n</tool_call>"
    return await samples([*TEMPLATE.encode(said), TEMPLATE.token_id("<|im_end|>") or 0])(request)


def servers_file(folder: Path, *args: str) -> str:
    file = folder / f"servers{len(args)}{''.join(args)}.json"
    entry = {"command": "${PYTHON}", "args": [HOSTILE, *args]}
    file.write_text(json.dumps({"mcpServers": {"hostile": entry}}))
    return str(file)


async def played(
    store: Store,
    shared: Resources,
    seq: int,
    kind: str,
    scorer: str = "exact_match",
    sampler_class: type[AsyncSampler] = MCPSampler,
) -> tuple[Record, Slot]:
    asked = TaskPayload(query=f"KIND {kind}", answer="4", scorer=scorer)
    task = make_task(seq, num_generations=1).model_copy(update={"payload": asked})
    await store.tasks.insert_new([task])
    held = await claim(store)
    sampler = sampler_class(shared, held)
    await play(sampler)
    record, slot, _ = await ended(store, sampler)
    assert len(record.error or "") <= MAX_ERROR_CHARS
    assert len(slot.error or "") <= MAX_SLOT_ERROR_CHARS
    return record, slot


async def test_every_response_of_a_hostile_server_is_an_answer_or_a_recorded_failure(
    store: Store, tmp_path: Path
) -> None:
    outcomes = {}
    async with resources(
        store, attacked, mcp_manager_url=servers_file(tmp_path), tool_timeout_s=60, retry_delay_s=3600
    ) as shared:
        for seq, kind in enumerate(ANSWERS):
            record, slot = await played(store, shared, seq, kind)
            assert (record.status, slot.status) in (
                (RecordStatus.SCORED, SlotStatus.SCORED),
                (RecordStatus.FAILED, SlotStatus.OPEN),
            )
            outcomes[kind] = record.termination, record.error
    assert {kind for kind, (_, error) in outcomes.items() if error is None} == ANSWERED, outcomes
    failed = {termination for termination, error in outcomes.values() if error is not None}
    assert failed == {Termination.TOOL_FAILURE.value}


async def test_every_tool_list_of_a_hostile_server_is_used_or_the_slot_is_released_with_the_reason(
    store: Store, tmp_path: Path
) -> None:
    for seq, listing in enumerate(LISTINGS):
        async with resources(
            store, attacked, mcp_manager_url=servers_file(tmp_path, listing), retry_delay_s=3600
        ) as shared:
            record, _ = await played(store, shared, seq, "twice")
            assert (record.status is RecordStatus.SCORED) == (listing in LISTED), (listing, record.error)
            if listing not in LISTED:  # the server's fault, not the task's
                assert record.status is RecordStatus.ABANDONED
                assert "tool server hostile" in (record.error or "")


async def test_any_result_or_exception_of_a_scorer_is_a_score_or_a_recorded_failure(store: Store) -> None:
    async with resources(store, says("<answer>4</answer>"), retry_delay_s=3600) as shared:
        for seq, kind in enumerate([*UNFIT, *FAULTY, "fitting"]):
            record, slot = await played(store, shared, seq, kind, scorer="outside_data")
            expected = Termination.NOT_STORABLE if kind == "too_large" else Termination.SCORER_FAILURE
            if kind in HELD:
                facts = {"scorer": "outside_data", "extracted": "4", "expected": ["4"]}
                assert (slot.score, record.reward_details) == (1.0, facts | HELD[kind])
            elif kind == "too_deep":
                assert slot.score == 1.0, "what explains a score costs it nothing"
                assert "(nested more than 64 levels deep)" in str(record.reward_details)
            else:
                assert (record.status, record.termination) == (RecordStatus.FAILED, expected.value), kind
                assert slot.status is SlotStatus.OPEN
                assert record.error


async def test_texts_that_a_users_class_passes_on_are_made_whole(store: Store) -> None:
    async with resources(store, says("<answer>4</answer>")) as shared:
        record, slot = await played(store, shared, 0, "x", sampler_class=Careless)
    assert (record.status, slot.score) == (RecordStatus.SCORED, 1.0)
    (dispatch,) = (await store.records.dispatches_of([record.id]))[record.id]
    assert dispatch.messages[0]["content"] == "half \ufffd"
    (call,) = dispatch.tool_calls
    assert (call.arguments, call.result) == ({"n": "18446744073709551616"}, "\ufffd")


async def test_a_turn_too_large_for_a_document_is_a_recorded_failure_with_the_reason(store: Store) -> None:
    async with resources(store, says("hello"), retry_delay_s=3600) as shared:
        record, slot = await played(store, shared, 0, "x", sampler_class=Overflowing)
    assert (record.status, record.termination) == (RecordStatus.FAILED, Termination.NOT_STORABLE.value)
    assert "MongoDB rejects the document" in (slot.error or "")
    (dispatch,) = (await store.records.dispatches_of([record.id]))[record.id]
    assert (dispatch.status, dispatch.tool_calls, dispatch.response) == (DispatchStatus.FAILED, [], None)
    assert "MongoDB rejects the document" in (dispatch.error or "")
