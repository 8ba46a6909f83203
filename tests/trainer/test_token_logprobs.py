"""The log-probs that the trainer stores of the tokens that it trained."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from shared.documents import DBRecordData
from shared.documents.packed import unpack_floats
from shared.documents.trainer_logprobs import TokenMark, TrainerLogprobs
from shared.tokens.merging import LossRules
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import RecordBuilder, random_group
from tests.trainer.exactness_table import counts
from trainer.losses import LossConfig
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.model import load_model
from trainer.process.parallel import Parallel
from trainer.reporting.token_logprobs import documents
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, TokenTree, merge


def alike() -> list[RecordTree]:
    """Two replies with the same first token: in short rows the second one's tokens are in two."""
    found = []
    for name, reply in (("alike 0", [30, 31, 32]), ("alike 1", [30, 33, 34])):
        builder = RecordBuilder(name)
        builder.reply(reply, builder.context([7, 8]))
        found.append(builder.build())
    return found


GROUPS = [alike(), *(random_group(seed) for seed in range(4))]
RECORDS = [record for group in GROUPS for record in group]
DATA = [
    DBRecordData.model_construct(id=f"data {n}", record=record.record_id, policy="main")
    for n, record in enumerate(RECORDS)
]
FLOAT32 = 1e-6  # of a log-prob that is stored as float32
Place = tuple[int, int, int]  # trajectory, turn, place in its context


def opened(model_directory: Path, parallel: Parallel, loss: LossConfig = LossConfig()) -> Learner:
    config = OptimizerConfig(learning_rate=1e-2)
    return open_learner(model_directory, loss, config, parallel, LearnerOptions(dtype="float64", keep_logprobs=True))


def forwarded(model_directory: Path) -> dict[Place, tuple[float, float]]:
    """(trainer's, engine's) log-prob of each trained token, each sequence by a forward of its own."""
    model = load_model(model_directory, dtype="float64")
    with exact_norms(model):
        return _forwarded(model)


def _forwarded(model: PreTrainedModel) -> dict[Place, tuple[float, float]]:
    found = {}
    for t, record in enumerate(RECORDS):
        for node in np.flatnonzero(record.trained_N).tolist():
            path = record.path(node)
            ids = torch.from_numpy(record.token_ids_N[path].astype(np.int64))
            turn = record.dispatches[int(record.dispatches_N[node])]
            with torch.no_grad():
                logits = model(input_ids=ids[None, :-1]).logits[0, -1]
            logprob = torch.log_softmax(logits.double() / turn.temperature, dim=-1)[ids[-1]]
            found[t, turn.turn, len(path) - 1] = (float(logprob), float(record.logprobs_N[node]))
    return found


def unpacked(kept: list[TrainerLogprobs]) -> dict[Place, tuple[float, int]]:
    """(log-prob, marks) of each token that has a loss."""
    found = {}
    for document in kept:
        for turn in document.turns:
            for k, (logprob, mark) in enumerate(zip(unpack_floats(turn.logprobs), turn.marks, strict=True)):
                assert np.isnan(logprob) == (mark == 0)
                if mark:
                    found[int(document.data.split()[1]), turn.turn, turn.first + k] = (float(logprob), mark)
    return found


def trees(merging: Merging = Merging.TREE) -> list[TokenTree]:
    return [merge(group, merging=merging) for group in GROUPS]


@pytest.mark.parametrize("max_tokens", [6, 10_000])
@pytest.mark.parametrize("merging", Merging)
def test_every_trained_token_is_stored_once_with_the_log_prob_of_its_own_sequence(
    merging: Merging, max_tokens: int, model_directory: Path, alone: Parallel
) -> None:
    learner = opened(model_directory, alone)
    with exact_norms(learner.causal_lm):
        expected = forwarded(model_directory)
        merged = trees(merging)
        rows = pack(merged, max_tokens, one_sequence_per_row=merging is not Merging.TREE)
        (found,) = learner.step(rows[::-1], counts(merged)).logprobs  # packing may spread a turn over rows in any order
    assert found is not None
    kept = list(documents(found, DATA, step=3, trainer_generation=2))
    stored = unpacked(kept)
    assert stored.keys() == expected.keys()
    for place, (logprob, _) in stored.items():
        assert logprob == pytest.approx(expected[place][0], abs=FLOAT32), place
    assert [document.id for document in kept] == [f"{document.data}:3:2" for document in kept]
    for document in kept:
        own = {place: pair for place, pair in expected.items() if f"data {place[0]}" == document.data}
        (t, turn, at), (ours, engines) = max(own.items(), key=lambda item: abs(item[1][0] - item[1][1]))
        assert document.largest_difference == pytest.approx(abs(ours - engines), abs=FLOAT32)
        assert (document.largest_turn, document.largest_place) == (turn, at), t


def test_a_step_of_two_updates_stores_each_token_with_the_weights_of_its_update(
    model_directory: Path, alone: Parallel
) -> None:
    learner = opened(model_directory, alone)
    merged = trees()
    halves = [merged[:2], merged[2:]]
    cut = sum(tree.num_trajectories for tree in halves[0])
    with exact_norms(learner.causal_lm):
        before = forwarded(model_directory)
        first, second = learner.step_in_minibatches(
            [Minibatch(pack(half, 30), counts(half)) for half in halves]
        ).logprobs
    assert first is not None
    assert second is not None
    early = unpacked(list(documents(first, DATA[:cut], 1, 1)))
    late = unpacked(list(documents(second, DATA[cut:], 1, 1)))
    assert early.keys() | late.keys() == before.keys()
    assert all(abs(logprob - before[place][0]) < FLOAT32 for place, (logprob, _) in early.items())
    assert max(abs(logprob - before[place][0]) for place, (logprob, _) in late.items()) > 1e-3, (
        "the first update moved it"
    )


def test_marks_say_which_tokens_the_loss_clipped(model_directory: Path, alone: Parallel) -> None:
    learner = opened(model_directory, alone, LossConfig(loss="GRPO", epsilon=0.01, epsilon_higher=0.02))
    merged = trees()
    with exact_norms(learner.causal_lm):
        expected = forwarded(model_directory)
        (found,) = learner.step(pack(merged, 30), counts(merged)).logprobs
    assert found is not None
    stored = unpacked(list(documents(found, DATA, 1, 1)))
    advantages = {(t, turn.turn): turn.advantage for t, record in enumerate(RECORDS) for turn in record.dispatches}
    seen = set()
    for place, (_, mark) in stored.items():
        ours, engines = expected[place]
        ratio, advantage = np.exp(ours - engines), advantages[place[:2]]
        high, low = advantage > 0 and ratio > 1.02, advantage < 0 and ratio < 0.99
        clipped = TokenMark.CLIPPED_HIGH * high | TokenMark.CLIPPED_LOW * low
        assert mark == TokenMark.HAS_LOSS | clipped, place
        seen.add(mark)
    assert seen == {1, 3, 5}, "tokens of each kind were looked at"


def test_a_log_prob_that_is_no_number_is_the_largest_difference(model_directory: Path, alone: Parallel) -> None:
    learner = opened(model_directory, alone)
    merged = trees()
    with torch.no_grad():
        next(iter(learner.causal_lm.parameters())).mul_(float("nan"))
    (found,) = learner.step(pack(merged, 10_000), counts(merged)).logprobs
    assert found is not None
    kept = list(documents(found, DATA, 1, 1))
    assert kept
    assert {document.largest_difference for document in kept} == {float("inf")}


def test_nothing_is_computed_where_it_is_not_asked_for(model_directory: Path, alone: Parallel) -> None:
    learner = open_learner(model_directory, LossConfig(), OptimizerConfig(), alone)
    merged = trees()
    assert learner.step(pack(merged, 10_000), counts(merged)).logprobs == [None]


def test_records_of_a_group_without_a_trained_token_have_no_document(model_directory: Path, alone: Parallel) -> None:
    learner = opened(model_directory, alone)
    merged = [merge(group, drop_zero_advantage=True, minimal_advantage=0.5) for group in GROUPS]
    (found,) = learner.step(pack(merged, 30), counts(merged)).logprobs
    assert found is not None
    kept = {document.data for document in documents(found, DATA, 1, 1)}
    trained = {f"data {t}" for t, record in enumerate(RECORDS) if has_loss(record)}
    assert kept == trained
    assert len(trained) < len(RECORDS)


def has_loss(record: RecordTree) -> bool:
    return bool(LossRules(True, 0.5, False).loss_mask(record).any())
