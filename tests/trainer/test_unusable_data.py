"""Data that cannot be trained is dropped by name, and the step takes the next group: no spoilt document ends a trainer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.documents.packed import pack_floats, pack_ints
from shared.documents.run import Admission
from shared.documents.states import DataStatus
from shared.errors import DataError, MalformedDocument
from shared.tasks.admission import seq_limit
from shared.tokens.flatten import tree_of
from tests.trainer.streams import add_groups, make_config, publish, start
from trainer.data.reading import check_tokens
from trainer.data.stream import RecordStream
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.trees.experts import ModelBounds

FIRST = "main:train:0:t0:0:1"  # a record of the oldest group
VOCAB_SIZE = 1000
Spoil = Callable[[StoreBridge], None]


def change(collection: str, identity: str, update: dict[str, Any]) -> Spoil:
    def spoil(bridge: StoreBridge) -> None:
        result = bridge(bridge.store.database[collection].update_one({"_id": identity}, update))
        assert result.modified_count == 1

    return spoil


def gone(collection: str, identity: str) -> Spoil:
    def spoil(bridge: StoreBridge) -> None:
        assert bridge(bridge.store.database[collection].delete_one({"_id": identity})).deleted_count == 1

    return spoil


DISPATCH = f"{FIRST}:0"
SPOILT: dict[str, tuple[Spoil, str]] = {
    "an extra key": (change("record_data", FIRST, {"$set": {"note": "mine"}}), "note"),
    "a text for a number": (change("record_data", FIRST, {"$set": {"num_tokens": "many"}}), "num_tokens"),
    "a text for marks": (change("record_data", FIRST, {"$set": {"trained_steps": "none"}}), "trained_steps"),
    "a field that is gone": (change("record_data", FIRST, {"$unset": {"min_version": 1}}), "min_version"),
    "no task": (change("record_data", FIRST, {"$unset": {"task": 1}}), "task"),
    "a dispatch without ids": (
        change("dispatched_sampling_tasks", DISPATCH, {"$set": {"response.output_ids": "many"}}),
        "log-probs",
    ),
    "a dispatch that is gone": (gone("dispatched_sampling_tasks", DISPATCH), DISPATCH),
    "other tokens": (
        change("dispatched_sampling_tasks", DISPATCH, {"$set": {"prompt_ids": pack_ints([7, 7, 7])}}),
        "digest",
    ),
}


def oldest_of(stream: RecordStream, step: int) -> set[str]:
    batch = stream.next_batch(step)
    assert batch is not None
    stream.commit(step)
    return {rid.split(":")[3] for rid in batch.record_ids}


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("prefetch", [False, True])
def test_a_group_with_a_spoilt_document_is_dropped_by_name_and_the_step_takes_the_next(
    bridge: StoreBridge, alone: Parallel, what: str, prefetch: bool
) -> None:
    spoil, named = SPOILT[what]
    publish(bridge, range(2))
    add_groups(bridge, range(5))
    spoil(bridge)
    with start(bridge, alone, prefetch=prefetch) as stream:
        assert oldest_of(stream, 1) == {"t1", "t2"}
        assert oldest_of(stream, 2) == {"t3", "t4"}
    left = bridge(bridge.store.database["record_data"].find({"last_trained_step": None}).to_list())
    assert FIRST in {data["_id"] for data in left}
    dropped = [data for data in left if data["status"] == DataStatus.DROPPED]
    assert dropped, "it is told by its status"
    assert all(named in data["reason"] and FIRST in data["reason"] for data in dropped), dropped[0]["reason"]
    assert [data["claim"] for data in left] == [None] * len(left), "nothing stays borrowed"
    admission = {"main": Admission(groups_per_step=4, max_staleness=0)}
    assert bridge(seq_limit(bridge.store, ["main"], admission)) == (2, "sampling"), "another task is opened for it"


@pytest.mark.parametrize("ids", [[5, VOCAB_SIZE], [5, -1]])
def test_a_token_outside_the_vocabulary_is_named_and_its_group_is_dropped(
    bridge: StoreBridge, alone: Parallel, ids: list[int]
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(3))
    spoil_tokens(bridge, {"prompt_ids": pack_ints(ids)})
    config = make_config()
    stream = start(bridge, alone)
    stream = RecordStream(
        bridge, config, alone, trainer_generation=stream._trainer_generation, bounds=ModelBounds(VOCAB_SIZE)
    )
    assert oldest_of(stream, 1) == {"t1", "t2"}
    (data,) = bridge(bridge.store.data.find({"_id": FIRST}))
    assert data.status is DataStatus.DROPPED
    assert f"record {FIRST}: token 1 has id {ids[1]}; expected 0 to 999, the model's vocabulary" in (data.reason or "")


@pytest.mark.parametrize("logprob", [0.5, float("nan"), float("-inf")])
def test_a_log_prob_that_is_none_is_named_and_its_group_is_dropped(
    bridge: StoreBridge, alone: Parallel, logprob: float
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(3))
    (found,) = bridge(bridge.store.records.dispatches_of([FIRST]))[FIRST]
    assert found.response is not None
    count = len(found.response.output_ids) // 4
    spoil_tokens(bridge, {"response.output_logprobs": pack_floats([-0.5] * (count - 1) + [logprob])})
    assert oldest_of(start(bridge, alone), 1) == {"t1", "t2"}
    (data,) = bridge(bridge.store.data.find({"_id": FIRST}))
    assert "expected a finite number, at most 0" in (data.reason or "")


def spoil_tokens(bridge: StoreBridge, values: dict[str, Any]) -> None:
    """Change the first record's tokens as an engine would have had them: its training data agrees with them."""
    change("dispatched_sampling_tasks", DISPATCH, {"$set": values})(bridge)
    (data,) = bridge(bridge.store.data.find({"_id": FIRST}))
    (tokens,) = bridge(bridge.store.records.tokens_of([FIRST])).values()
    with pytest.raises(DataError, match="have digest") as caught:
        tree_of(data, tokens)
    found = str(caught.value).partition("have digest ")[2].partition(";")[0]
    change("record_data", FIRST, {"$set": {"digest": found}})(bridge)


def test_marks_that_are_none_stop_a_resume_by_name_and_nothing_is_undone(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(2))
    add_groups(bridge, range(2))
    oldest_of(start(bridge, alone), 1)
    change("record_data", FIRST, {"$set": {"trained_steps": "one"}})(bridge)
    before = bridge(bridge.store.database["record_data"].find().sort("_id").to_list())
    with pytest.raises(MalformedDocument, match=f"record_data {FIRST}: trained_steps: found 'one'"):
        bridge(bridge.store.data.rewind("main", 0, max_trained_count=1))
    assert bridge(bridge.store.database["record_data"].find().sort("_id").to_list()) == before


def test_sound_tokens_pass(bridge: StoreBridge) -> None:
    add_groups(bridge, range(1))
    (data,) = bridge(bridge.store.data.find({"_id": FIRST}))
    (tokens,) = bridge(bridge.store.records.tokens_of([FIRST])).values()
    tree = tree_of(data, tokens)
    check_tokens(tree, int(np.max(tree.token_ids_N)) + 1)
