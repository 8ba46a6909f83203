"""Advantages that need more than their group: normalized over the step's whole batch, over all ranks, from what is stored.

Settlement cannot do this: it knows one group, and which groups make a batch is known only now. Nothing is written back, so
the stored advantages stay those of the dispatches, and a step that is taken again after a resume comes to the same numbers.

    batch_std   A / (std of the rewards of the batch's records + 1e-6): Lite PPO, arXiv 2508.08221; ScaleRL, arXiv 2510.13786
    source      (A − mean) / (std + 1e-6) over all trained tokens of the batch that are of the record's source: AgentRL,
                arXiv 2510.04206, eq. 1
    your own    a function of all turns of the batch, which a module of `loss_modules` registers: `@register_normalization(name)`
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shared.documents import DBRecordData
from shared.names import shortened
from shared.tokens.record_tree import RecordTree
from trainer.settings.normalizations import NORMALIZATIONS, AdvantageNormalization, BatchTurn

EPSILON = 1e-6
ALIKE = 1e-12  # of the larger: advantages this close are equal, their spread is rounding
Gather = Callable[[Any], list[Any]]  # a value of every rank, the same list on all


def normalize(
    data: Sequence[DBRecordData], trees: Sequence[RecordTree], kind: str, gather: Gather
) -> tuple[list[RecordTree], dict[str, float]]:
    """This rank's trees with their advantages normalized, and what they were normalized by. Every rank must call it."""
    if kind == AdvantageNormalization.BATCH_STD:
        std = _sample_std([r for rank in gather([d.reward + d.shaping for d in data]) for r in rank])
        changed = [_with_advantages(tree, 0.0, std + EPSILON) for tree in trees]
        return changed, {"advantage/batch_reward_std": std}
    if kind == AdvantageNormalization.SOURCE:
        own = [row for d, tree in zip(data, trees, strict=True) for row in _token_advantages(d.source, tree)]
        by_source = token_statistics([row for rank in gather(own) for row in rank])
        changed = [_by_source(tree, d.source, by_source) for d, tree in zip(data, trees, strict=True)]
        return changed, {
            f"advantage_{name}_by_source/{source}": value
            for source, (mean, std) in by_source.items()
            for name, value in (("mean", mean), ("std", std))
        }
    if kind == AdvantageNormalization.NONE:
        return list(trees), {}
    own_turns = [turn for d, tree in zip(data, trees, strict=True) for turn in _turns(d, tree)]
    turns = sorted((turn for rank in gather(own_turns) for turn in rank), key=lambda turn: turn.dispatch)
    values: Sequence[float] = NORMALIZATIONS.call(kind, partial(_problem, turns), turns)
    advantages = {turn.dispatch: advantage for turn, advantage in zip(turns, values, strict=True)}
    return [_given(tree, advantages) for tree in trees], {}


def _turns(d: DBRecordData, tree: RecordTree) -> list[BatchTurn]:
    tokens_D = np.bincount(tree.dispatches_N[tree.trained_N], minlength=len(tree.dispatches)).tolist()
    reward = d.reward + d.shaping
    return [
        BatchTurn(dispatch.id, d.record, d.task, d.source, reward, dispatch.advantage, tokens)
        for dispatch, tokens in zip(tree.dispatches, tokens_D, strict=True)
    ]


def _problem(turns: Sequence[BatchTurn], values: object) -> str:
    """What is wrong with the result of a user's normalization; empty where nothing is."""
    if not isinstance(values, Sequence) or len(values) != len(turns):
        return f"returned {shortened(values)}; expected a list of {len(turns)} numbers, one for each turn"
    for turn, value in zip(turns, values, strict=True):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"gave turn {turn.dispatch} {shortened(value)}; expected finite numbers"
    return ""


def _given(tree: RecordTree, advantages: Mapping[str, float]) -> RecordTree:
    changed = (dataclasses.replace(d, advantage=float(advantages[d.id])) for d in tree.dispatches)
    return dataclasses.replace(tree, dispatches=tuple(changed))


def _sample_std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    scale = max(map(abs, values)) or 1.0  # squares of very large and very small numbers fit into no double
    mean = math.fsum(v / scale for v in values) / len(values)
    return scale * math.sqrt(math.fsum((v / scale - mean) ** 2 for v in values) / (len(values) - 1))


def _token_advantages(source: str, tree: RecordTree) -> list[tuple[str, float, int]]:
    """(source, advantage, trained tokens) of every dispatch that has some."""
    tokens_D = np.bincount(tree.dispatches_N[tree.trained_N], minlength=len(tree.dispatches))
    return [(source, d.advantage, n) for d, n in zip(tree.dispatches, tokens_D.tolist(), strict=True) if n > 0]


def token_statistics(rows: Sequence[tuple[str, float, int]]) -> dict[str, tuple[float, float]]:
    """{source: (mean, standard deviation)} over tokens. The sums are exact, so that the order of ranks does not matter."""
    statistics = {}
    for source in sorted({source for source, _, _ in rows}):
        own = [(advantage, n) for s, advantage, n in rows if s == source]
        total = sum(n for _, n in own)
        mean = math.fsum(a * n for a, n in own) / total
        statistics[source] = (mean, math.sqrt(math.fsum(n * (a - mean) ** 2 for a, n in own) / total))
    return statistics


def _by_source(tree: RecordTree, source: str, by_source: Mapping[str, tuple[float, float]]) -> RecordTree:
    if source not in by_source:  # none of its records has a trained token
        return tree
    mean, std = by_source[source]
    return _with_advantages(tree, mean, std + EPSILON)


def _with_advantages(tree: RecordTree, mean: float, divisor: float) -> RecordTree:
    changed = (dataclasses.replace(d, advantage=_difference(d.advantage, mean) / divisor) for d in tree.dispatches)
    return dataclasses.replace(tree, dispatches=tuple(changed))


def _difference(advantage: float, mean: float) -> float:
    return 0.0 if abs(advantage - mean) <= ALIKE * max(abs(advantage), abs(mean)) else advantage - mean
