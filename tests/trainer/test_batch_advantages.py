"""Advantages normalized over the batch: the formulas, in plain numpy over tokens; ranks and updates change nothing."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict

from shared.documents import DBRecordData
from shared.tokens.flatten import data_fields
from shared.tokens.record_tree import RecordTree, TreeDispatch
from tests.shared.builders import make_task
from trainer.data.advantages import normalize
from trainer.settings.normalizations import AdvantageNormalization

BATCH_STD, SOURCE = AdvantageNormalization.BATCH_STD, AdvantageNormalization.SOURCE


class Settled(DBRecordData):
    """Training data, and the tree that its dispatches would give."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    tree: RecordTree


def record(k: int, source: str, reward: float, turns: Sequence[tuple[float, int]], *, trained: bool = True) -> Settled:
    """`turns` are (advantage, sampled tokens), one token of prompt before each."""
    source_N = np.concatenate([[-1] + [t] * n for t, (_, n) in enumerate(turns)]).astype(np.int32)
    size = len(source_N)
    tree = RecordTree(
        record_id=f"main:train:0:t{k}:0:1",
        token_ids_N=np.arange(size, dtype=np.int32),
        parents_N=np.arange(-1, size - 1, dtype=np.int32),
        dispatches_N=source_N,
        logprobs_N=np.zeros(size, dtype=np.float32),
        versions_N=np.where(source_N >= 0, 0, -1).astype(np.int32),
        dispatches=tuple(TreeDispatch(f"{k}:{t}", t, a, trained=trained) for t, (a, _) in enumerate(turns)),
    )
    task = make_task(k)
    return Settled(
        id=tree.record_id,
        record=tree.record_id,
        task=task.id,
        group_size=1,
        seq=k,
        policy="main",
        split="train",
        source=source,
        reward=reward,
        shaping=0.125,
        tree=tree,
        **data_fields(tree),
    )


def random_batch(rng: Random) -> list[Settled]:
    same = rng.random() < 0.2
    return [
        record(
            k,
            rng.choice(["search", "math", "one"][: rng.choice((1, 2, 3))]),
            1.0 if same else rng.choice((0.0, 0.3, 1.0)),
            [(0.0 if same else round(rng.uniform(-1, 1), 3), rng.randint(0, 4)) for _ in range(rng.randint(1, 3))],
            trained=rng.random() > 0.15,
        )
        for k in range(rng.randint(1, 9))
    ]


def alone(value: Any) -> list[Any]:
    return [value]


def on_two_ranks(
    data: Sequence[Settled], kind: AdvantageNormalization, split: int
) -> tuple[list[RecordTree], list[dict[str, float]]]:
    """Each rank's half, with what the other one gathered; the order of ranks is that of the list."""
    halves = [list(data[:split]), list(data[split:])]
    said: list[Any] = []
    for half in halves:
        normalize(half, [d.tree for d in half], kind, lambda value: [said.append(value) or value])
    found = [normalize(half, [d.tree for d in half], kind, lambda value: said) for half in halves]
    return [tree for trees, _ in found for tree in trees], [metrics for _, metrics in found]


def advantages(trees: Sequence[RecordTree]) -> list[list[float]]:
    return [[d.advantage for d in tree.dispatches] for tree in trees]


def by_tokens(data: Sequence[Settled], kind: AdvantageNormalization) -> list[list[float]]:
    """The formulas with an advantage for every token."""
    trees = [d.tree for d in data]
    if kind is BATCH_STD:
        rewards = np.array([d.reward + 0.125 for d in data])
        std = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
        return [[d.advantage / (std + 1e-6) for d in tree.dispatches] for tree in trees]
    tokens: dict[str, list[float]] = {}
    for d, tree in zip(data, trees, strict=True):
        for node in range(tree.num_tokens):
            sampler = tree.dispatches_N[node]
            if sampler >= 0 and tree.dispatches[sampler].trained:
                tokens.setdefault(d.source, []).append(tree.dispatches[sampler].advantage)
    stats = {source: (np.mean(values), np.std(values)) for source, values in tokens.items()}
    return [
        [
            float((x.advantage - stats[d.source][0]) / (stats[d.source][1] + 1e-6))
            if d.source in stats
            else x.advantage
            for x in tree.dispatches
        ]
        for d, tree in zip(data, trees, strict=True)
    ]


@pytest.mark.parametrize("kind", [BATCH_STD, SOURCE])
@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_batch_is_normalized_as_the_formulas_say(kind: AdvantageNormalization, rng: Random) -> None:
    data = random_batch(rng)
    trees, _ = normalize(data, [d.tree for d in data], kind, alone)
    for found, expected in zip(advantages(trees), by_tokens(data, kind), strict=True):
        # Where all rewards are alike, what divides is 1e-6 and the rounding of a deviation of 0: 1e-16 in one of the two.
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("kind", [BATCH_STD, SOURCE])
@settings(max_examples=30, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_two_ranks_come_to_the_very_numbers_of_one(kind: AdvantageNormalization, rng: Random) -> None:
    data = random_batch(rng)
    trees, metrics = normalize(data, [d.tree for d in data], kind, alone)
    shared, of_ranks = on_two_ranks(data, kind, rng.randint(0, len(data)))
    assert advantages(shared) == advantages(trees)
    assert of_ranks == [metrics, metrics]


def test_each_source_gets_mean_0_and_deviation_1_over_its_tokens() -> None:
    data = [
        record(0, "a", 1.0, [(0.5, 3), (0.1, 1)]),
        record(1, "a", 0.0, [(-0.5, 4)]),
        record(2, "b", 1.0, [(9.0, 2)]),
    ]
    trees, metrics = normalize(data, [d.tree for d in data], SOURCE, alone)
    tokens = np.repeat([a for row in advantages(trees[:2]) for a in row], [3, 1, 4])
    assert tokens.mean() == pytest.approx(0.0, abs=1e-12)
    assert tokens.std() == pytest.approx(1.0, abs=1e-5)
    assert advantages(trees[2:]) == [[0.0]], "tokens that are all alike teach nothing"
    assert metrics["advantage_mean_by_source/b"] == 9.0


def test_without_normalization_the_stored_advantages_are_used() -> None:
    data = random_batch(Random(3))
    trees, metrics = normalize(data, [d.tree for d in data], AdvantageNormalization.NONE, alone)
    assert advantages(trees) == advantages([d.tree for d in data])
    assert metrics == {}
