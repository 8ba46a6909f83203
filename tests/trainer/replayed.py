"""Random groups whose tokens have routed experts, and the slow, obvious forward that repeats them."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from shared.documents.expert_array import Experts
from shared.documents.routed_experts import pack_experts
from shared.tokens.expert_span import ExpertSpan
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import random_group

LAYERS, TOP_K, NUM_EXPERTS = 3, 2, 4  # of `tiny_experts_model`, whose first layer is dense
Arrays = dict[str, Experts]
Replay = tuple[list[RecordTree], Arrays]


def replayed_group(seed: int) -> Replay:
    """`random_group` with random experts, other ones in every record, of two requests that overlap; some tokens have none."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    records = [_with_experts(record, rng, arrays) for record in random_group(seed)]
    return records, arrays


def _with_experts(record: RecordTree, rng: np.random.Generator, arrays: Arrays) -> RecordTree:
    cut = int(rng.integers(0, record.num_tokens))
    first = _span(rng, arrays, before=-1, start=0, count=cut)
    second = _span(rng, arrays, before=cut - 1, start=cut, count=int(rng.integers(0, record.num_tokens - cut + 1)))
    return dataclasses.replace(record, experts=tuple(span for span in (first, second) if span is not None))


def _span(rng: np.random.Generator, arrays: Arrays, *, before: int, start: int, count: int) -> ExpertSpan | None:
    if count == 0:
        return None
    shape = (count + (before >= 0), LAYERS, NUM_EXPERTS)
    experts = np.argsort(rng.random(shape), -1)[..., :TOP_K].astype(np.uint8).reshape(shape[0], -1)
    stored = pack_experts(experts, 0).described
    arrays[stored.sha256] = experts
    return ExpertSpan(stored, before, start)


def expected_choices(records: Sequence[RecordTree], arrays: Arrays) -> dict[tuple[int, ...], Experts]:
    """{a prefix's tokens: the choices of its last one}: of the first record, and in it of the first request."""
    choices: dict[tuple[int, ...], Experts] = {}
    for record in records:
        of_node: dict[int, Experts] = {}
        for span in record.experts:
            before = [] if span.before < 0 else [span.before]
            rows = arrays[span.stored.sha256]
            for node, row in zip([*before, *range(span.start, 10**4)], rows, strict=False):
                of_node.setdefault(node, row)
        for node in sorted(of_node):
            choices.setdefault(tuple(record.token_ids_N[record.path(node)].tolist()), of_node[node])
    return choices


def replay_one_by_one(model: PreTrainedModel, choices: dict[tuple[int, ...], Experts]) -> None:
    """Make forwards of single sequences by `model` repeat `choices`, token by token, by the formula of Qwen3-MoE in float64."""
    ids: list[int] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: ids.__setitem__(slice(None), kwargs["input_ids"][0].tolist()),
        with_kwargs=True,
    )
    for layer, block in enumerate(model.model.layers):
        if hasattr(block.mlp, "gate"):
            block.mlp.gate.forward = _router(block.mlp.gate.weight, ids, choices, layer)


def _router(weight: Tensor, ids: list[int], choices: dict[tuple[int, ...], Experts], layer: int):
    def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = hidden.reshape(-1, weight.shape[1]) @ weight.T
        weights, experts = [], []
        for place, of_token in enumerate(logits):
            p = of_token.softmax(-1)
            known = choices.get(tuple(ids[: place + 1]))
            experts.append(
                p.topk(TOP_K).indices
                if known is None
                else torch.from_numpy(known[layer * TOP_K : (layer + 1) * TOP_K]).long()
            )
            weights.append(p[experts[-1]] / p[experts[-1]].sum())
        return logits, torch.stack(weights), torch.stack(experts)

    return forward
