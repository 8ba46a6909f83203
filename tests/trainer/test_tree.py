"""Merging: every distinct prefix once, every trained token traced to its record, and fast."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine_mismatch import engine_number
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import STALENESS, RecordBuilder, random_group, random_tree_record
from trainer.trees.packing import pack
from trainer.trees.staleness import Staleness
from trainer.trees.tree import Merging, TokenTree, merge

seeds = st.integers(0, 2**32 - 1)


def tree_path(parents: np.ndarray, ids: np.ndarray, node: int) -> tuple[int, ...]:
    path = []
    while node >= 0:
        path.append(int(ids[node]))
        node = int(parents[node])
    return tuple(reversed(path))


def prefixes(records: list[RecordTree]) -> set[tuple[int, ...]]:
    return {tuple(r.token_ids_N[r.path(node)].tolist()) for r in records for node in range(r.num_tokens)}


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_every_distinct_prefix_of_the_records_is_exactly_one_node(seed: int) -> None:
    records = random_group(seed)
    tree = merge(records)
    found = [tree_path(tree.parents_N, tree.ids_N, node) for node in range(tree.num_tree)]
    assert len(set(found)) == len(found)
    assert set(found) == prefixes(records)
    assert all(len(path) == position + 1 for path, position in zip(found, tree.positions_N, strict=True))


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_the_interval_rule_is_the_ancestor_relation(seed: int) -> None:
    tree = merge(random_group(seed))
    n = tree.num_tree
    ancestors = np.zeros((n, n), dtype=bool)
    for node in range(n):
        key = node
        while key >= 0:
            ancestors[node, key] = True
            key = int(tree.parents_N[key])
    index = np.arange(n)
    assert (ancestors == ((index[None] <= index[:, None]) & (index[:, None] < tree.ends_N[None]))).all()


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_every_trained_token_is_one_entry_with_its_own_record_s_values(seed: int) -> None:
    records = random_group(seed)
    tree = merge(records).at(STALENESS)
    expected = []
    for trajectory, record in enumerate(records):
        for node in np.flatnonzero(record.trained_N):
            dispatch = record.dispatches[int(record.dispatches_N[node])]
            path = tuple(record.token_ids_N[record.path(int(node))].tolist())
            staleness = STALENESS.of(int(record.versions_N[node]))
            floats = (record.logprobs_N[node], np.float32(dispatch.advantage), np.float32(dispatch.temperature))
            expected.append((path, *floats, trajectory, dispatch.turn, staleness))
    e = tree.entries
    columns = (e.old_logprob_E, e.advantage_E, e.temperature_E, e.trajectory_E, e.turn_E, e.staleness_E)
    found = [
        (tree_path(tree.parents_N, tree.ids_N, int(node)), *values)
        for node, *values in zip(e.node_E, *columns, strict=True)
    ]
    assert sorted(found) == sorted(expected)
    assert tree.trained_tokens_T.tolist() == [int(record.trained_N.sum()) for record in records]


def test_two_records_that_sampled_the_same_token_give_two_entries_on_one_node() -> None:
    records = []
    for name in ("a", "b"):
        builder = RecordBuilder(name)
        builder.reply([5, 6], builder.context([1, 2]))
        records.append(builder.build())
    tree = merge(records)
    assert tree.num_tree == 4
    assert tree.entries.node_E.tolist() == [2, 3, 2, 3]
    assert tree.entries.trajectory_E.tolist() == [0, 0, 1, 1]


def test_a_token_in_several_branches_of_its_record_is_trained_once() -> None:
    builder = RecordBuilder("a")
    reply = builder.reply([5, 6], builder.context([1, 2]))
    builder.reply([7], builder.context([3], reply))
    builder.reply([8], builder.context([4], reply))
    tree = merge([builder.build()])
    assert tree.ids_N[tree.entries.node_E].tolist() == [5, 6, 7, 8]


def test_equal_siblings_inside_a_record_become_one_node_with_two_entries() -> None:
    builder = RecordBuilder("a")
    prompt = builder.context([1, 2])
    builder.reply([5, 6], prompt)
    builder.reply([5, 7], prompt)
    tree = merge([builder.build()])
    assert tree.ids_N.tolist() == [1, 2, 5, 6, 7]
    assert tree.entries.node_E.tolist() == [2, 3, 2, 4]


def test_a_record_in_any_topological_order_merges_to_the_same_prefixes() -> None:
    records = random_group(5)
    rng = np.random.default_rng(0)
    for record in records:
        order: list[int] = []
        ready = set(np.flatnonzero(record.parents_N < 0).tolist())
        while ready:
            node = int(rng.choice(sorted(ready)))
            order.append(node)
            ready = (ready - {node}) | set(np.flatnonzero(record.parents_N == node).tolist())
        new_index = np.argsort(order)
        parents = record.parents_N[order]
        names = ("token_ids_N", "dispatches_N", "logprobs_N", "versions_N")
        shuffled = dataclasses.replace(
            record,
            parents_N=np.where(parents < 0, -1, new_index[parents]).astype(np.int32),
            **{name: getattr(record, name)[order] for name in names},
        )
        a, b = merge([record]), merge([shuffled])
        assert _paths(a) == _paths(b)
        assert (a.num_flat, a.num_linear) == (b.num_flat, b.num_linear)


def test_branches_may_return_to_places_on_a_run_that_later_branches_cut() -> None:
    """A breadth-first record on top of a longer one: its last branch leaves beyond both cuts that the others made."""
    chain = RecordBuilder("chain")
    chain.reply(range(100, 112), chain.context([1]))
    parents_N = np.array([-1, *range(11), 7, 3, 10, 10], dtype=np.int32)
    n = len(parents_N)
    breadth_first = RecordTree(
        record_id="breadth-first",
        token_ids_N=np.array([1, *range(100, 111), 50, 51, 52, 53], dtype=np.int32),
        parents_N=parents_N,
        dispatches_N=np.full(n, -1, dtype=np.int32),
        logprobs_N=np.zeros(n, dtype=np.float32),
        versions_N=np.full(n, -1, dtype=np.int32),
        dispatches=(),
    )
    records = [chain.build(), breadth_first]
    assert _paths(merge(records)) == prefixes(records)


def _paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tree_path(tree.parents_N, tree.ids_N, node) for node in range(tree.num_tree)}


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_the_order_of_the_records_does_not_change_what_is_in_the_tree(seed: int) -> None:
    records = random_group(seed)
    a, b = merge(records), merge(records[::-1])
    assert _paths(a) == _paths(b)
    assert (a.num_flat, a.num_linear, a.num_tree) == (b.num_flat, b.num_linear, b.num_tree)


def test_counts_of_a_chain_follow_the_formulas() -> None:
    """T calls, base P, growth d: flat TP + dT(T+1)/2; linear and tree P + Td. K such records with one prompt share P."""
    turns, base, growth = 5, 11, 4
    records = []
    for name in range(3):
        builder = RecordBuilder(str(name))
        last = builder.context(range(base))
        for _ in range(turns):
            last = builder.reply([100 + name] * growth, last)
        records.append(builder.build())
    tree = merge(records)
    assert tree.num_flat == 3 * (turns * base + growth * turns * (turns + 1) // 2)
    assert tree.num_linear == 3 * (base + turns * growth)
    assert tree.num_tree == base + 3 * turns * growth


def test_counts_of_a_rewritten_history_show_that_linear_merging_does_not_help() -> None:
    builder = RecordBuilder("a")
    prompt = builder.context([1, 2, 3])
    for reply in (10, 11, 12):
        builder.reply([reply, reply], prompt)
    tree = merge([builder.build()])
    assert (tree.num_flat, tree.num_linear, tree.num_tree) == (15, 15, 9)


def test_records_without_any_advantage_leave_the_tree_and_stay_in_the_denominators() -> None:
    records = []
    for name, advantages in {"kept": (0.0, 1.0), "dropped": (0.0, -0.0)}.items():
        builder = RecordBuilder(name)
        last = builder.context([1, 2])
        for i, advantage in enumerate(advantages):
            last = builder.reply([len(name), i], last, advantage=advantage)
        records.append(builder.build())
    everything, kept = merge(records), merge(records, drop_zero_advantage=True)
    assert kept.num_tree < everything.num_tree
    assert set(kept.entries.trajectory_E.tolist()) == {0}
    assert kept.trained_tokens_T.tolist() == everything.trained_tokens_T.tolist() == [4, 4]
    alone = merge(records[:1])
    assert (kept.num_flat, kept.num_linear, kept.num_tree) == (alone.num_flat, alone.num_linear, alone.num_tree)
    assert merge(records[1:], drop_zero_advantage=True).num_tree == 0


@pytest.mark.parametrize("merging", [Merging.LINEAR, Merging.NONE])
@pytest.mark.parametrize("seed", range(8))
def test_without_a_tree_the_same_entries_stand_on_chains_that_share_nothing(merging: Merging, seed: int) -> None:
    records = random_group(seed)
    tree, chains = merge(records), merge(records, merging=merging)
    index_N = np.arange(chains.num_tree)
    assert ((chains.parents_N == index_N - 1) | (chains.parents_N == -1)).all()
    assert np.array_equal(chains.positions_N == 0, chains.parents_N == -1)
    assert (chains.ends_N[chains.parents_N[chains.parents_N >= 0]] == chains.ends_N[chains.parents_N >= 0]).all()
    assert chains.num_tree == (tree.num_linear if merging is Merging.LINEAR else tree.num_flat)
    assert all(
        np.array_equal(getattr(tree.entries, name), getattr(chains.entries, name))
        for name in ("old_logprob_E", "advantage_E", "trajectory_E", "turn_E", "temperature_E")
    )
    for each in range(len(tree.entries)):
        paths = [t.ids_N[path_to(t.parents_N, int(t.entries.node_E[each]))].tolist() for t in (tree, chains)]
        assert paths[0] == paths[1]


def path_to(parents_N: np.ndarray, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents_N[node])
    return path[::-1]


def test_a_reply_that_weights_changed_in_has_the_staleness_of_each_token_and_loses_only_those_too_old() -> None:
    builder = RecordBuilder("a")
    builder.reply([3, 4, 5], builder.context([1]), versions=[0, 2, 4])
    tree = merge([builder.build()])
    assert tree.at(STALENESS).entries.staleness_E.tolist() == [4.0, 2.0, 0.0]
    masked = tree.at(Staleness(STALENESS.steps_behind, limit=2))
    assert masked.entries.staleness_E.tolist() == [2.0, 0.0]
    assert (masked.entries_T.tolist(), masked.trained_tokens_T.tolist()) == ([2], [3])
    assert tree.at(Staleness(None)).entries.staleness_E.tolist() == [0.0] * 3


def test_records_of_131k_tokens_merge_in_well_under_a_second_of_computing() -> None:
    record = random_tree_record(np.random.default_rng(0), 131_072, num_runs=400)
    ids = record.token_ids_N.copy()
    ids[60_000:] += 1
    late_fork = dataclasses.replace(record, token_ids_N=ids)
    started = time.thread_time()  # not what others take of the machine
    tree = merge([record, record, late_fork])
    elapsed_s = time.thread_time() - started
    assert 131_072 < tree.num_tree < 2 * 131_072
    assert elapsed_s < 1.0, f"merging three records of 131k tokens took {elapsed_s:.2f} s"


def test_every_entry_has_the_engine_that_sampled_its_token() -> None:
    """A reply that one engine began and another finished, between a reply of one engine and one of an unknown one."""
    builder = RecordBuilder("r")
    last = builder.context([1, 2])
    for ids in ([3], [4, 5, 6], [7]):
        last = builder.context([8], builder.reply(ids, last))
    engines = ((("http://a", None),), (("http://b", 1), ("http://a", 2)), ())
    built = builder.build()
    record = dataclasses.replace(
        built,
        dispatches=tuple(dataclasses.replace(d, engines=own) for d, own in zip(built.dispatches, engines, strict=True)),
    )
    entries = merge([record]).entries
    expected = [*map(engine_number, ("http://a", "http://b", "http://a", "http://a", None))]
    assert entries.engine_E.tolist() == expected
    (row,) = pack([merge([record])], 100)
    assert sorted(row.engine_E.tolist()) == sorted(expected)
