"""Routed experts: stored once by their digest, and in the tree of their record."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from shared.documents import DispatchTokens
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.replies import SampledTokens
from shared.documents.routed_experts import PackedExperts, pack_experts, unpack_experts
from shared.documents.states import DispatchStatus
from shared.errors import DataError
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.copying import copy_groups
from shared.store.data_file import export_data, import_data
from shared.tokens.expert_span import experts_of_record
from shared.tokens.flatten import data_fields, flatten
from tests.shared.episodes import whole_run

CHOICES = 6


def experts(count: int, base: int, most: int = 200) -> npt.NDArray[np.int64]:
    return (np.arange(count * CHOICES).reshape(count, CHOICES) * 7 + base) % most


def dispatch(
    turn: int,
    prompt: Sequence[int],
    output: Sequence[int],
    packed: PackedExperts | None,
    parent: int | None,
    shared: int,
) -> DispatchTokens:
    return DispatchTokens(
        id=f"r:{turn}",
        record="r",
        turn=turn,
        parent=None if parent is None else f"r:{parent}",
        shared_length=shared,
        prompt_ids=pack_ints(prompt),
        sampling_params={"temperature": 1.0},
        response=SampledTokens(output_ids=pack_ints(output), output_logprobs=pack_floats([-0.5] * len(output))),
        weight_versions=[(1, len(output))],
        status=DispatchStatus.COMPLETED,
        routed_experts=None if packed is None else packed.described,
    )


FIRST, SECOND, BRANCH = (pack_experts(experts(n, base), first) for n, base, first in ((4, 0, 0), (4, 1, 4), (3, 2, 3)))
DISPATCHES = [
    dispatch(0, [1, 2, 3], [4, 5], FIRST, None, 0),  # rows of tokens 0 to 3
    dispatch(1, [6, 7], [8, 9], SECOND, 0, 5),  # of 4, the last one of its parent, to 7
    dispatch(2, [10], [11, 12], BRANCH, 0, 4),  # of 3, which its parent has already, to 5
]


@pytest.mark.parametrize(("most", "width"), [(200, 1), (256, 1), (257, 2), (40_000, 2)])
def test_an_array_is_packed_in_one_byte_an_expert_or_two_and_comes_back(most: int, width: int) -> None:
    array = experts(most, 0, most)
    packed = pack_experts(array, 3)
    assert (packed.described.first, packed.described.count, packed.described.choices) == (3, most, CHOICES)
    assert packed.described.num_bytes == len(packed.data) == width * array.size
    np.testing.assert_array_equal(unpack_experts(packed.described, packed.data), array)


def test_what_is_no_expert_is_refused() -> None:
    for array in (np.full((1, CHOICES), -1), np.full((1, CHOICES), 2**16), np.zeros((0, CHOICES), dtype=int)):
        with pytest.raises(ValueError, match="expected some, from 0 to 65535"):
            pack_experts(array, 0)


def test_a_token_has_the_experts_of_the_first_request_that_computed_it() -> None:
    tree = flatten("r", DISPATCHES, dict.fromkeys(("r:0", "r:1", "r:2"), 1.0))
    arrays = {packed.described.sha256: unpack_experts(*packed) for packed in (FIRST, SECOND, BRANCH)}
    found, given = experts_of_record(tree, arrays)
    row_of = {
        **{token: experts(4, 0)[place] for place, token in enumerate((1, 2, 3, 4))},
        **{token: experts(4, 1)[place] for place, token in enumerate((5, 6, 7, 8))},
        **{token: experts(3, 2)[place + 1] for place, token in enumerate((10, 11))},
    }
    for token, row, known in zip(tree.token_ids_N.tolist(), found, given, strict=True):
        assert known == (token in row_of), token
        np.testing.assert_array_equal(row, row_of.get(token, np.zeros(CHOICES)))


def test_other_experts_are_another_tree_and_are_refused() -> None:
    advantages = dict.fromkeys(("r:0", "r:1", "r:2"), 1.0)
    tree = flatten("r", DISPATCHES, advantages)
    without = flatten("r", [d.model_copy(update={"routed_experts": None}) for d in DISPATCHES], advantages)
    assert data_fields(tree)["digest"] != data_fields(without)["digest"]


@pytest.mark.parametrize(("first", "count"), [(3, 2), (5, 5), (9, 1)])
def test_experts_of_tokens_that_a_request_does_not_add_are_refused(first: int, count: int) -> None:
    """The second request shares 5 tokens and adds 4: places 4 to 8 may have experts."""
    packed = pack_experts(experts(count, 0), first)
    wrong = [DISPATCHES[0], DISPATCHES[1].model_copy(update={"routed_experts": packed.described})]
    with pytest.raises(DataError, match="dispatch r:1: routed experts of its tokens"):
        flatten("r", wrong, {"r:0": 1.0, "r:1": 1.0})


def test_a_record_with_other_numbers_of_choices_is_refused() -> None:
    packed = pack_experts(experts(4, 1)[:, :4], 4)
    wrong = [DISPATCHES[0], DISPATCHES[1].model_copy(update={"routed_experts": packed.described})]
    with pytest.raises(DataError, match="4 choices of a token; expected 6, as in its first request"):
        flatten("r", wrong, {"r:0": 1.0, "r:1": 1.0})


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.documents.routed_experts.EXPERT_CHUNK_BYTES", 10)


async def test_an_array_is_stored_in_chunks_once_and_read_again(store: Store, small_chunks: None) -> None:
    for packed in (FIRST, SECOND, FIRST):
        await store.routed_experts.keep(packed)
    assert await store.database["routed_experts"].count_documents({}) == 6
    arrays = await store.routed_experts.read([FIRST.described, SECOND.described, FIRST.described])
    np.testing.assert_array_equal(arrays[FIRST.described.sha256], experts(4, 0))
    np.testing.assert_array_equal(arrays[SECOND.described.sha256], experts(4, 1))


async def test_a_missing_chunk_and_other_bytes_are_refused(store: Store, small_chunks: None) -> None:
    await store.routed_experts.keep(FIRST)
    name = FIRST.described.chunks[1]
    await store.database["routed_experts"].update_one({"_id": name}, {"$set": {"data": b"0123456789"}})
    with pytest.raises(DataError, match="24 bytes of another digest or number"):
        await store.routed_experts.read([FIRST.described])
    await store.database["routed_experts"].delete_one({"_id": name})
    with pytest.raises(DataError, match="is missing, but a request names it"):
        await store.routed_experts.read([FIRST.described])


@pytest.fixture
async def other(mongod: Mongod, store: Store) -> AsyncIterator[Store]:
    async with Store.open(mongod.connection_string, store.run + "-other", create=False) as other:
        yield other
        await other.client.drop_database(other.run)


async def name_experts(store: Store) -> None:
    """In two requests of the run; a third array is named by none."""
    for packed in (FIRST, SECOND, BRANCH):
        await store.routed_experts.keep(packed)
    for record, packed in (("main:train:0:t0:0:1", FIRST), ("main:train:0:t1:0:1", SECOND)):
        changed = await store.database["dispatched_sampling_tasks"].update_one(
            {"record": record, "turn": 0}, {"$set": {"routed_experts": packed.described.to_mongo()}}
        )
        assert changed.modified_count == 1


async def test_they_are_copied_with_the_groups_that_name_them(store: Store, other: Store, small_chunks: None) -> None:
    await whole_run(store)
    await name_experts(store)
    await other.begin()
    assert await copy_groups(store, other, "main") == 2
    named = [FIRST.described, SECOND.described]
    assert set(await other.database["routed_experts"].distinct("_id")) == {name for one in named for name in one.chunks}
    assert len(await other.routed_experts.read(named)) == 2


async def test_a_data_file_has_them_before_what_names_them(
    store: Store, other: Store, tmp_path: Path, small_chunks: None
) -> None:
    await whole_run(store)
    await name_experts(store)
    await export_data(store, tmp_path / "data.bson.gz", "main")
    await other.begin()
    await import_data(other, tmp_path / "data.bson.gz")
    assert len(await other.routed_experts.read([FIRST.described, SECOND.described])) == 2
