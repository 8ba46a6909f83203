"""From dispatches to the token tree: token for token, branches included."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.documents import DBRecordData, DispatchedSamplingTask, DispatchTokens
from shared.documents.packed import pack_ints, unpack_floats, unpack_ints
from shared.documents.states import DispatchStatus
from shared.errors import DataError
from shared.store.records import TOKENS
from shared.tokens.flatten import data_fields, flatten, tree_of
from shared.tokens.record_tree import RecordTree
from shared.truncation import Truncation
from tests.sampler.builders import make_dispatch

ADVANTAGES = {f"r:{turn}": turn / 2 for turn in range(10)}


def sequence_of(dispatches: list[DispatchedSamplingTask], index: int) -> list[int]:
    """Prompt and output of a dispatch, by the rule of the documents alone."""
    d = dispatches[index]
    before: list[int] = []
    if d.parent is not None:
        before = sequence_of(dispatches, int(d.parent.rsplit(":", 1)[1]))[: d.shared_length]
    assert d.response is not None
    return [*before, *unpack_ints(d.prompt_ids).tolist(), *unpack_ints(d.response.output_ids).tolist()]


def end_of(tree: RecordTree, index: int) -> int:
    return int(np.flatnonzero(tree.dispatches_N == index)[-1])


def test_a_growing_context_is_a_chain() -> None:
    dispatches = [make_dispatch("r", 0, [1, 2], [3, 4]), make_dispatch("r", 1, [5], [6], parent=0, shared_length=4)]
    tree = flatten("r", dispatches, ADVANTAGES)
    assert tree.token_ids_N.tolist() == [1, 2, 3, 4, 5, 6]
    assert tree.parents_N.tolist() == [-1, 0, 1, 2, 3, 4]
    assert tree.dispatches_N.tolist() == [-1, -1, 0, 0, -1, 1]
    assert [d.advantage for d in tree.dispatches] == [0.0, 0.5]


def test_an_episode_without_a_loss_keeps_its_tokens_and_trains_none() -> None:
    tree = flatten("r", [make_dispatch("r", 0, [1, 2], [3, 4])], ADVANTAGES, trained=False)
    assert tree.dispatches_N.tolist() == [-1, -1, 0, 0]
    assert not tree.trained_N.any()


def test_a_rewritten_history_is_a_branch_in_depth_first_order() -> None:
    dispatches = [
        make_dispatch("r", 0, [1, 2], [3, 4]),
        make_dispatch("r", 1, [5], [6], parent=0, shared_length=2),  # forgets the first reply
        make_dispatch("r", 2, [7], [8], parent=0, shared_length=4),  # goes on from it
    ]
    tree = flatten("r", dispatches, ADVANTAGES)
    assert [tree.token_ids_N[tree.path(leaf)].tolist() for leaf in tree.leaves()] == [
        [1, 2, 3, 4, 7, 8],
        [1, 2, 5, 6],
    ]


def test_a_reply_in_parts_keeps_the_version_of_each_token() -> None:
    dispatch = make_dispatch("r", 0, [1], [2, 3, 4], weight_versions=[(7, 1), (8, 2)])
    assert flatten("r", [dispatch], ADVANTAGES).versions_N.tolist() == [-1, 7, 8, 8]


def test_a_request_without_an_answer_is_not_in_the_tree() -> None:
    failed = make_dispatch("r", 1, [9], [9], parent=0, shared_length=3, status=DispatchStatus.FAILED)
    assert flatten("r", [make_dispatch("r", 0, [1], [2, 3]), failed], ADVANTAGES).token_ids_N.tolist() == [1, 2, 3]


def test_missing_logprobs_are_an_error_and_not_zeros() -> None:
    dispatch = make_dispatch("r", 0, [1], [2, 3], weight_versions=[(0, 1)])
    with pytest.raises(DataError, match=r"r:0.*1 weight versions for 2 tokens"):
        flatten("r", [dispatch], ADVANTAGES)


def test_sharing_more_than_the_parent_has_is_an_error() -> None:
    dispatches = [make_dispatch("r", 0, [1], [2]), make_dispatch("r", 1, [3], [4], parent=0, shared_length=9)]
    with pytest.raises(DataError, match=r"shares 9 tokens with r:0, which has 2 tokens"):
        flatten("r", dispatches, ADVANTAGES)


def settled(dispatches: list[DispatchedSamplingTask]) -> DBRecordData:
    fields = data_fields(flatten("r", dispatches, {d.id: 0.5 for d in dispatches}))
    return DBRecordData(
        id="r",
        record="r",
        task="t",
        group_size=1,
        seq=0,
        policy="main",
        split="train",
        source="s",
        reward=1.0,
        **fields,
    )


def test_training_data_comes_back_from_its_dispatches_with_its_own_advantages() -> None:
    dispatches = [make_dispatch("r", 0, [1, 2], [3, 4]), make_dispatch("r", 1, [5], [6], parent=0, shared_length=4)]
    tree = tree_of(settled(dispatches), dispatches)
    assert tree.token_ids_N.tolist() == [1, 2, 3, 4, 5, 6]
    assert [(d.id, d.advantage) for d in tree.dispatches] == [("r:0", 0.5), ("r:1", 0.5)]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": pack_ints([1, 9])},
        {"weight_versions": [(1, 2)]},
        {"response": make_dispatch("r", 0, [1, 2], [3, 5]).response},
    ],
)
def test_tokens_changed_after_settlement_are_never_trained(change: dict[str, object]) -> None:
    dispatch = make_dispatch("r", 0, [1, 2], [3, 4])
    data = settled([dispatch])
    with pytest.raises(DataError, match="A dispatch was changed"):
        tree_of(data, [dispatch.model_copy(update=change)])


def test_training_data_whose_dispatch_is_gone_is_an_error() -> None:
    with pytest.raises(DataError, match="r:0 does not exist"):
        tree_of(settled([make_dispatch("r", 0, [1], [2])]), [])


@st.composite
def episodes(draw: st.DrawFn) -> list[DispatchedSamplingTask]:
    ids = st.lists(st.integers(0, 5), min_size=1, max_size=4)
    dispatches = [make_dispatch("r", 0, draw(ids), draw(ids))]
    for turn in range(1, draw(st.integers(1, 6))):
        parent = draw(st.integers(0, turn - 1))
        shared = draw(st.integers(1, len(sequence_of(dispatches, parent))))
        dispatches.append(
            make_dispatch("r", turn, draw(ids), draw(ids), parent=parent, shared_length=shared, version=turn)
        )
    return dispatches


@given(episodes())
@settings(max_examples=60, deadline=None)
def test_the_path_to_every_dispatch_is_its_sequence_with_its_own_logprobs(
    dispatches: list[DispatchedSamplingTask],
) -> None:
    tree = flatten("r", dispatches, ADVANTAGES)
    for node in range(1, tree.num_tokens):  # depth first: every node continues the one before it, or one on its path
        assert tree.parents_N[node] in [-1, *tree.path(node - 1)]
    for index, dispatch in enumerate(dispatches):
        path = tree.path(end_of(tree, index))
        assert tree.token_ids_N[path].tolist() == sequence_of(dispatches, index)
        assert dispatch.response is not None
        own = tree.dispatches_N == index
        assert tree.logprobs_N[own].tobytes() == unpack_floats(dispatch.response.output_logprobs).tobytes()
        assert set(tree.versions_N[own].tolist()) == {v for v, _ in dispatch.weight_versions}


def truncated_dispatch(*, says_so: bool) -> DispatchedSamplingTask:
    dispatch = make_dispatch("r", 0, [1, 2], [3, 4])
    assert dispatch.response is not None
    response = dispatch.response.model_copy(update={"truncated_logprobs": says_so})
    return dispatch.model_copy(update={"response": response, "sampling_params": {"temperature": 0.7, "top_p": 0.9}})


def test_a_truncation_travels_with_the_dispatch_into_the_training_data() -> None:
    dispatch = truncated_dispatch(says_so=True)
    data = settled([dispatch])
    assert data.dispatches[0].truncation == Truncation(top_p=0.9)
    assert data.to_mongo()["dispatches"][0]["truncation"] == {"top_p": 0.9, "top_k": 0, "min_p": 0.0}
    assert tree_of(data, [dispatch]).dispatches[0].truncation == Truncation(top_p=0.9)
    assert "truncation" not in settled([make_dispatch("r", 0, [1, 2], [3, 4])]).to_mongo()["dispatches"][0]


def test_log_probs_of_another_distribution_than_the_tokens_are_never_trained() -> None:
    spoilt, right = truncated_dispatch(says_so=False), truncated_dispatch(says_so=True)
    with pytest.raises(DataError, match=r"turn 0: its tokens were drawn from a truncated distribution \(top_p 0.9\)"):
        flatten("r", [spoilt], ADVANTAGES)
    assert flatten("r", [spoilt], ADVANTAGES, trained=False).dispatches[0].truncation.keeps_all
    data = settled([right])
    (used,) = data.dispatches
    other = data.model_copy(update={"dispatches": [used.model_copy(update={"truncation": Truncation()})]})
    with pytest.raises(DataError, match=r"its log-probs are of another \(nothing truncated\)"):
        tree_of(other, [right])


def test_the_engine_of_a_reply_and_of_each_part_of_one_goes_with_its_tokens() -> None:
    cut = [("http://a:1", 1), ("http://b:1", 2)]
    dispatches = [
        make_dispatch("r", 0, [1], [2, 3], service="http://a:1"),
        make_dispatch("r", 1, [4], [5, 6, 7], parent=0, shared_length=3, service="http://b:1", engines=cut),
        make_dispatch("r", 2, [8], [9], parent=1, shared_length=7),
    ]
    expected = [(("http://a:1", None),), tuple(cut), ()]
    assert [d.engines for d in flatten("r", dispatches, ADVANTAGES).dispatches] == expected
    stored = [DispatchTokens.from_mongo(only_tokens(d)) for d in dispatches]
    assert [d.engines for d in tree_of(settled(dispatches), stored).dispatches] == expected
    wrong = make_dispatch("r", 0, [1], [2, 3], service="http://b:1", engines=cut)
    with pytest.raises(DataError, match=r"r:0: engines .* sampled other than its 2 tokens"):
        flatten("r", [wrong], ADVANTAGES)


def only_tokens(dispatch: DispatchedSamplingTask) -> dict[str, Any]:
    """What the store reads of it for its tokens."""
    whole = dispatch.to_mongo()
    found = {name: whole[name] for name in ("_id", *TOKENS) if name in whole}
    response = {name: whole["response"][name] for name in ("output_ids", "output_logprobs")}
    return found | {"response": response}
