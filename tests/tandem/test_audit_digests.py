"""The audit's own digest of a tree: it is that of settlement, and what it passes is what a comparison token by token passes."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.documents import DBRecordData, DispatchedSamplingTask, SampledResponse
from shared.documents.packed import pack_floats, pack_ints
from shared.errors import DataError
from shared.tokens.flatten import data_fields, flatten
from tandem.audit.digests import summary_of
from tandem.audit.report import AuditReport
from tandem.audit.tokens import audit_rebuilt_tree, audit_tokens

RECORD = "main:train:0:t0:0:1"


@st.composite
def episodes(draw: st.DrawFn) -> list[DispatchedSamplingTask]:
    """Up to six turns: each continues an earlier one, shares a part of it, or is a root; some have no prompt or no reply."""
    turns: list[DispatchedSamplingTask] = []
    lengths: list[int] = []
    for number in range(draw(st.integers(1, 6))):
        parent = draw(st.integers(-1, number - 1))
        shared = 0 if parent < 0 else draw(st.one_of(st.just(lengths[parent]), st.integers(0, lengths[parent])))
        prompt = draw(st.integers(0 if shared else 1, 3))
        reply = draw(st.integers(0, 3))
        first = draw(st.integers(0, reply))
        response = SampledResponse(
            text="",
            message={},
            output_ids=pack_ints(draw(st.lists(st.integers(0, 99), min_size=reply, max_size=reply))),
            output_logprobs=pack_floats([-0.5 * k for k in range(reply)]),
            finish_reason="stop",
        )
        turns.append(
            DispatchedSamplingTask(
                id=f"{RECORD}:{number}",
                record=RECORD,
                turn=number,
                parent=None if parent < 0 else f"{RECORD}:{parent}",
                shared_length=shared,
                prompt_ids=pack_ints(draw(st.lists(st.integers(0, 99), min_size=prompt, max_size=prompt))),
                messages=[],
                tools_hash="",
                sampling_params={"temperature": 1.0},
                sampled_by=draw(st.sampled_from([None, "other"])),
                response=response,
                weight_versions=[(3, first), (4, reply - first)],
                status="completed",
                advantage=1.0,
            )
        )
        lengths.append(shared + prompt + reply)
    return turns


def data_of(turns: list[DispatchedSamplingTask]) -> DBRecordData:
    fields = data_fields(flatten(RECORD, turns, {turn.id: 1.0 for turn in turns}))
    named: dict[str, Any] = {"task": "main:train:0:t0", "policy": "main", "split": "train", "source": "s"}
    return DBRecordData(id=RECORD, record=RECORD, group_size=2, seq=0, reward=1.0, **named, **fields)


@given(episodes())
@settings(max_examples=300, deadline=None)
def test_the_digest_of_every_tree_is_settlements(turns: list[DispatchedSamplingTask]) -> None:
    data = data_of(turns)
    summary = summary_of(data, {turn.id: turn for turn in turns})
    plain = all(turn.response and (turn.response.output_ids or not turn.prompt_ids) for turn in turns)
    assert (summary is not None) == plain, "only a prompt without a reply is left to the comparison of tokens"
    assert summary is None or summary.digest == data.digest


@given(episodes())
@settings(max_examples=300, deadline=None)
def test_both_ways_count_the_same(turns: list[DispatchedSamplingTask]) -> None:
    data, by_id = data_of(turns), {turn.id: turn for turn in turns}
    quick, slow = AuditReport("r"), AuditReport("r")
    audit_tokens(quick, data, by_id)
    audit_rebuilt_tree(slow, data, by_id)
    assert quick.to_json() == slow.to_json()


CHANGES = {
    "prompt_ids": lambda turn, draw: _flipped(turn.prompt_ids, draw),
    "response.output_ids": lambda turn, draw: _flipped(turn.response.output_ids, draw),
    "response.output_logprobs": lambda turn, draw: _flipped(turn.response.output_logprobs, draw),
    "shared_length": lambda turn, draw: turn.shared_length + draw(st.sampled_from([-1, 1])),
    "weight_versions": lambda turn, draw: [(5, sum(n for _, n in turn.weight_versions))],
    "parent": lambda turn, draw: f"{RECORD}:{draw(st.integers(0, 6))}",
    "sampling_params": lambda turn, draw: {"temperature": 1.0, "top_p": draw(st.sampled_from([0.5, 2.0, "x", None]))},
    "engines": lambda turn, draw: [("http://e", draw(st.integers(0, 4)))],
    "response": lambda turn, draw: None,
}


def _flipped(packed: bytes, draw: st.DrawFn) -> bytes:
    """One bit is another, or a byte lacks."""
    if not packed:
        return pack_ints([1])
    if draw(st.booleans()):
        return packed[:-1]
    changed = np.frombuffer(packed, dtype=np.uint8).copy()
    changed[draw(st.integers(0, len(changed) - 1))] ^= 1 << draw(st.integers(0, 7))
    return changed.tobytes()


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_a_changed_dispatch_is_found_as_by_the_comparison_of_tokens(draw: st.DataObject) -> None:
    turns = draw.draw(episodes())
    data = data_of(turns)
    number, name = draw.draw(st.integers(0, len(turns) - 1)), draw.draw(st.sampled_from(sorted(CHANGES)))
    value = CHANGES[name](turns[number], draw.draw)
    if name.startswith("response."):
        assert turns[number].response is not None
        response = turns[number].response.model_copy(update={name.removeprefix("response."): value})
        turns[number] = turns[number].model_copy(update={"response": response})
    else:
        turns[number] = turns[number].model_copy(update={name: value})
    by_id = {turn.id: turn for turn in turns}
    quick, slow = AuditReport("r"), AuditReport("r")
    audit_tokens(quick, data, by_id)
    try:
        audit_rebuilt_tree(slow, data, by_id)
    except (DataError, ValueError):  # raised by both: a part that is no number
        raise AssertionError(f"{name} = {value!r} raises") from None
    assert quick.to_json() == slow.to_json()
