"""Packing: nothing trained is lost or doubled, nothing it depends on is missing, and rows keep to their budget."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.bench.synthetic import growing
from tests.trainer.builders import STALENESS, RecordBuilder, random_group
from trainer.modeling.attention import dense_mask, sdpa_mask
from trainer.trees.packing import Row, empty_row, pack
from trainer.trees.tree import Merging, TokenTree, merge

seeds = st.integers(0, 2**32 - 1)


def path_ids(ids: np.ndarray, parents: np.ndarray, node: int) -> tuple[int, ...]:
    path = []
    while node >= 0:
        path.append(int(ids[node]))
        node = int(parents[node])
    return tuple(reversed(path))


def tree_entries(trees: list[TokenTree]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    trajectories = 0
    for tree in trees:
        e = tree.entries
        for i in range(len(e)):
            path = path_ids(tree.ids_N, tree.parents_N, int(e.node_E[i]))
            values = (e.old_logprob_E[i], e.advantage_E[i], e.temperature_E[i], e.turn_E[i], e.staleness_E[i])
            found.append((path, int(e.trajectory_E[i]) + trajectories, *map(float, values)))
        trajectories += tree.num_trajectories
    return sorted(found)


def row_entries(rows: list[Row]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for row in rows:
        ids, parents = row.ids_N.numpy(), row.parents_N.numpy()
        temperature_E = row.temperature_U[row.edge_E]
        for i in range(row.num_entries):
            values = (row.old_logprob_E[i], row.advantage_E[i], temperature_E[i], row.turn_E[i], row.staleness_E[i])
            path = path_ids(ids, parents, int(row.node_E[i]))
            found.append((path, int(row.trajectory_E[i]), *map(float, values)))
    return sorted(found)


def random_trees(seed: int) -> list[TokenTree]:
    return [merge(random_group(seed + i)).at(STALENESS) for i in range(3)]


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 80))
def test_every_entry_is_in_exactly_one_row_below_all_its_ancestors(seed: int, max_tokens: int) -> None:
    trees = random_trees(seed)
    assert row_entries(pack(trees, max_tokens)) == tree_entries(trees)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 80))
def test_rows_keep_to_the_budget_except_for_single_paths(seed: int, max_tokens: int) -> None:
    for row in pack(random_trees(seed), max_tokens):
        is_one_path = torch.equal(row.parents_N, torch.arange(-1, row.num_tokens - 1))
        assert row.num_tokens <= max_tokens or is_one_path


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 80))
def test_positions_and_ends_of_a_row_agree_with_its_parents(seed: int, max_tokens: int) -> None:
    for row in pack(random_trees(seed), max_tokens):
        ancestors = torch.zeros(row.num_tokens, row.num_tokens, dtype=torch.bool)
        for node, parent in enumerate(row.parents_N.tolist()):
            if parent >= 0:
                ancestors[node] = ancestors[parent]
            ancestors[node, node] = True
        assert torch.equal(dense_mask(row.ends_N)[0, 0], ancestors)
        assert torch.equal(row.positions_N, ancestors.sum(1) - 1)


def test_trees_that_fit_together_share_rows_and_are_not_cut() -> None:
    trees = []
    for i, length in enumerate([50, 40, 30, 20, 10]):
        builder = RecordBuilder(str(i))
        builder.reply([5], builder.context(range(100, 100 + length - 1)))
        trees.append(merge([builder.build()]))
    rows = pack(trees, 80)
    assert sorted(row.num_tokens for row in rows) == [70, 80]


def test_short_rows_are_as_long_as_the_longest_tree_and_hold_the_same_entries() -> None:
    trees = [merge(growing(1, prompt=300, reply=reply, observation=0, seed=reply)) for reply in (20, 100, 260, 400)]
    long, short = (pack(trees, 2000, short_rows=on) for on in (False, True))
    assert [row.num_tokens for row in long] == [sum(tree.num_tree for tree in trees)]
    assert [row.num_tokens for row in short] == [700, 560, 400, 320], "none is cut"
    assert sum(row.num_entries for row in short) == long[0].num_entries
    few = pack(trees[:1] * 3, 2000, short_rows=True)
    assert [row.num_tokens for row in few] == [320, 320, 320], "two would be more than SHORT_ROW"
    tiny = [merge(random_group(seed)) for seed in range(2)]
    assert len(pack(tiny, 2000, short_rows=True)) == 1, "up to SHORT_ROW they share one"
    assert max(row.num_tokens for row in pack(trees, 400, short_rows=True)) == 700, (
        "one path over the budget, as without"
    )


def test_one_path_over_the_budget_gets_a_row_of_its_own_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    builder = RecordBuilder("long")
    builder.reply([5] * 10, builder.context([1, 2]))
    with caplog.at_level(logging.WARNING, logger="trainer.trees.packing"):
        rows = pack([merge([builder.build()])], 6)
    assert [row.num_tokens for row in rows] == [12]
    assert "12 tokens" in caplog.text
    assert "max_tokens=6" in caplog.text


def test_what_trains_nothing_is_not_forwarded() -> None:
    builder = RecordBuilder("a")
    prompt = builder.context([1, 2])
    builder.reply([3, 4], prompt, trained=False)
    untrained = merge([builder.build()])
    assert pack([untrained], 100) == []
    builder.reply([5, 6], prompt)
    assert [row.ids_N.tolist() for row in pack([merge([builder.build()])], 4)] == [[1, 2, 5, 6]]


def test_a_shared_token_s_log_prob_is_computed_once_per_temperature() -> None:
    records = []
    for name, temperature in {"a": 1.0, "b": 1.0, "c": 0.5}.items():
        builder = RecordBuilder(name)
        builder.reply([5], builder.context([1, 2]), temperature=temperature)
        records.append(builder.build())
    (row,) = pack([merge(records)], 100)
    assert row.temperature_U.tolist() == [0.5, 1.0]
    assert row.edge_E.tolist() == [1, 1, 0]


def test_an_empty_row_has_one_token_and_trains_nothing() -> None:
    row = empty_row()
    assert (row.num_tokens, row.num_entries) == (1, 0)
    assert row.padded(128).num_tokens == 128


def test_padding_continues_the_last_sequence_and_is_seen_by_nothing_before_it() -> None:
    (row,) = pack([merge(random_group(3))], 1000)
    n = row.num_tokens
    padded = row.padded(128)
    mask = dense_mask(padded.ends_N)[0, 0]
    assert padded.num_tokens % 128 == 0
    assert torch.equal(mask[:n, :n], dense_mask(row.ends_N)[0, 0])
    assert not mask[:n, n:].any()
    assert torch.equal(mask[n:, :n], mask[n - 1, :n].expand(padded.num_tokens - n, n))
    assert torch.equal(padded.positions_N[n:] - padded.positions_N[n - 1], torch.arange(1, padded.num_tokens - n + 1))
    assert padded.padded(128) is padded


def test_one_sequence_stays_one_when_it_is_padded() -> None:
    builder = RecordBuilder("a")
    builder.reply([5, 6], builder.context([1, 2]))
    (row,) = pack([merge([builder.build()])], 100)
    assert sdpa_mask(row.padded(8).ends_N) is None


def test_a_row_moves_whole() -> None:
    (row,) = pack([merge(random_group(3))], 1000)
    moved = row.to("meta")
    tensors = {name: column for name, column in moved.columns().items() if name not in ("images", "experts")}
    assert moved.images is None
    assert moved.experts is None
    assert len(tensors) + 2 == len(dataclasses.fields(moved))
    assert all(tensor.is_meta for tensor in tensors.values())


def test_a_budget_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens is 0"):
        pack([], 0)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_one_sequence_per_row_makes_chains_with_the_same_entries(seed: int) -> None:
    groups = [random_group(seed + i) for i in range(2)]
    trees = [merge(records, merging=Merging.LINEAR) for records in groups]
    rows = pack(trees, 10, one_sequence_per_row=True)
    assert all((row.ends_N == row.num_tokens).all() for row in rows)
    assert all((row.parents_N == torch.arange(-1, row.num_tokens - 1)).all() for row in rows)
    assert row_entries(rows) == tree_entries([merge(records) for records in groups])
