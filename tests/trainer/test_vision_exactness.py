"""Images in trees: merged equals one forward of transformers per sequence, with the pixels and the positions of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from shared.tokens.image_span import placeholders
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import gradients, relative_difference
from tests.trainer.vision_models import (
    FAMILIES,
    IMAGE,
    VOCABULARY,
    exact_float64,
    pixels_of,
    records_with_images,
    tiny_vision_model,
)
from trainer.modeling.attention import MaskBuilder, dense_mask
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.vision import batched
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, merge

Results = tuple[dict[tuple[str, int], float], dict[str, Tensor]]


def rows_of(family: str, records: Sequence[RecordTree], merging: Merging, max_tokens: int) -> list[Row]:
    rows = pack([merge(records, merging=merging)], max_tokens)
    pixels = pixels_of(family)
    return [row.with_pixels(pixels.__getitem__) for row in rows]


def weight(trajectory: int, turn: int, rank: int) -> float:
    return (1.0 + 0.3 * trajectory - 0.7 * turn) * (1.0 + 0.1 * rank)


def one_by_one(model: PreTrainedModel, family: str, records: Sequence[RecordTree]) -> Results:
    """Every trained token, and the gradient of a weighted sum, by transformers' own forward of each sequence with its pixels."""
    model.zero_grad()
    pixels, found, total = pixels_of(family), {}, torch.zeros((), dtype=model.dtype)
    for t, record in enumerate(records):
        image_of_node = {int(placeholders(record, span)[0]): span.sha256 for span in record.images}
        for leaf in record.leaves():
            path = record.path(leaf)
            ids = torch.from_numpy(record.token_ids_N[path].astype("int64"))[None]
            shown = [pixels[image_of_node[int(node)]] for node in path if int(node) in image_of_node]
            given: dict[str, Any] = {}
            if shown:
                given = batched([{k: torch.from_numpy(v) for k, v in of.items()} for of in shown])
                if "qwen" in family:
                    given["mm_token_type_ids"] = (ids == IMAGE).int()
            logits = model(input_ids=ids, use_cache=False, **given).logits[0]
            for place in range(1, len(path)):
                node = int(path[place])
                if record.trained_N[node] and (t, node) not in found:
                    logprob = torch.log_softmax(logits[place - 1].double(), -1)[ids[0, place]]
                    found[t, node] = logprob.item()
                    turn = record.dispatches[record.dispatches_N[node]].turn
                    total = total + weight(t, turn, 0) * logprob
    total.backward()
    return by_value(records, found), gradients(model)


def by_value(records: Sequence[RecordTree], found: dict[tuple[int, int], float]) -> dict[tuple[str, int], float]:
    """By record and the trained token's number in it."""
    numbered: dict[tuple[str, int], float] = {}
    for t, record in enumerate(records):
        for number, node in enumerate(node for of, node in sorted(found) if of == t):
            numbered[record.record_id, number] = found[t, node]
    return numbered


def through_rows(
    model: PreTrainedModel, records: Sequence[RecordTree], rows: Sequence[Row], mask: MaskBuilder = dense_mask
) -> tuple[dict[str, list[float]], dict[str, Tensor]]:
    """Log-probs of each record, sorted, and the gradient of the same weighted sum."""
    model.zero_grad()
    lm = TreeLM(model)
    logprobs: dict[str, list[float]] = {record.record_id: [] for record in records}
    for row in rows:
        logprob_E, _ = row_logprobs(lm, row, attn=mask)
        weights = [weight(t, turn, 0) for t, turn in zip(row.trajectory_E.tolist(), row.turn_E.tolist(), strict=True)]
        (torch.tensor(weights, dtype=logprob_E.dtype) * logprob_E).sum().backward()
        for t, logprob in zip(row.trajectory_E.tolist(), logprob_E.tolist(), strict=True):
            logprobs[records[t].record_id].append(logprob)
    return {name: sorted(values) for name, values in logprobs.items()}, gradients(model)


def assert_equal(found: Any, expected: Results, records: Sequence[RecordTree], tolerance: float) -> None:
    for record in records:
        wanted = sorted(value for (name, _), value in expected[0].items() if name == record.record_id)
        assert len(wanted) == len(found[0][record.record_id])
        difference = max(abs(a - b) for a, b in zip(found[0][record.record_id], wanted, strict=True))
        assert difference < tolerance, record.record_id
    moved = {name: gradient for name, gradient in expected[1].items() if gradient.abs().max() > 1e-9}
    assert relative_difference({name: found[1][name] for name in moved}, moved) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("merging", "max_tokens"),
    [(Merging.TREE, 10_000), (Merging.TREE, 40), (Merging.LINEAR, 10_000), (Merging.NONE, 70)],
)
def test_images_in_a_tree_are_those_of_one_forward_per_sequence(family: str, merging: Merging, max_tokens: int) -> None:
    model, records = tiny_vision_model(family), records_with_images(family)
    rows = rows_of(family, records, merging, max_tokens)
    assert (len(rows) > 1) == (max_tokens < 100)
    with exact_float64(model):
        expected = one_by_one(model, family, records)
        assert_equal(through_rows(model, records, rows), expected, records, 1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_placeholder_that_the_model_sampled_is_a_token_like_any_other(family: str) -> None:
    """Beside a token with the same row in embedding and head, which is no placeholder: together these have the same gradient."""
    model, other = tiny_vision_model(family), 34
    tables = [p for p in model.parameters() if p.ndim == 2 and len(p) == VOCABULARY]
    with torch.no_grad():
        for table in tables:
            table[other] = table[IMAGE]

    def together(results: Any) -> Any:
        logprobs, found = results
        for gradient in (g for g in found.values() if g.ndim == 2 and len(g) == VOCABULARY):
            gradient[other] += gradient[IMAGE]
            gradient[IMAGE] = 0
        return logprobs, found

    records = records_with_images(family)
    ordinary, sampled = ([with_sampled(record, token) for record in records] for token in (other, IMAGE))
    with exact_float64(model):
        expected = together(one_by_one(model, family, ordinary))
        found = together(through_rows(model, sampled, rows_of(family, sampled, Merging.TREE, 10_000)))
    assert_equal(found, expected, records, 1e-9)


def with_sampled(record: RecordTree, token: int) -> RecordTree:
    """The first sampled token is `token`; others come after it."""
    ids_N = record.token_ids_N.copy()
    ids_N[int(record.trained_N.argmax())] = token
    return replace(record, token_ids_N=ids_N)
