"""Vision-language models in the learner: how they are computed, trained on several processes, saved, continued and written."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from shared.errors import ConfigError, DataError
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.launched import OPTIMIZER, exact_learner
from tests.trainer.layouts import Comparison, Layout
from tests.trainer.test_vision_exactness import rows_of
from tests.trainer.vision_models import FAMILIES, exact_float64, records_with_images, tiny_vision_model
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.forward_choice import choose_forward_mode
from trainer.modeling.trainable import choose_trained, lora_layers
from trainer.modeling.vision import vision_parts
from trainer.process.parallel import Parallel
from trainer.publishing.weights import write_weights
from trainer.settings.trained_parts import EVERYTHING, LoraSettings, Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.residence import to_host
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

LOSS = LossConfig(loss=LossName.CROSS_ENTROPY)
TRAINED = {
    "language model": EVERYTHING,
    "all of it": Trainable(train_vision=True),
    "adapters": Trainable(lora=LoraSettings(lora_rank=2)),
    "adapters everywhere": Trainable(train_vision=True, lora=LoraSettings(lora_rank=2)),
}


def take_vision_steps(learner: Learner, family: str, stop: int, parallel: Parallel) -> dict[str, float]:
    """In odd steps the last process has no image at all."""
    metrics: dict[str, float] = {}
    with exact_float64(learner.causal_lm):
        while learner.steps_done < stop:
            own = dealt(records_with_images(family), learner.steps_done, parallel)
            rows = rows_of(family, own, Merging.TREE, 60)
            counts = Denominators.count(torch.from_numpy(merge(own).trained_tokens_T))
            metrics = learner.step(rows, counts).metrics
    return metrics


def dealt(records: Sequence[RecordTree], step: int, parallel: Parallel) -> list[RecordTree]:
    size, rank = parallel.data.size, parallel.data.rank
    if step % 2 == 0:
        return list(records[rank::size])
    return [record for record in records if rank == (0 if record.images else size - 1)]


class VisionComparison(Comparison):
    def __init__(self, folder: Path, family: str, trainable: Trainable) -> None:
        self._family = family
        super().__init__(folder, tiny_vision_model(family), LOSS, trainable)

    def _take_steps(self, learner: Learner, stop: int, parallel: Parallel) -> dict[str, float]:
        return take_vision_steps(learner, self._family, stop, parallel)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_measured_way_is_prefix_trees_in_float32_too(family: str) -> None:
    lm = TreeLM(tiny_vision_model(family, dtype=torch.float32, attention="eager"))
    result = choose_forward_mode(lm, "auto", torch.device("cpu"))
    assert result.way.trees, result.rejected
    assert result.way.attention in ("by_node", "sdpa")
    records = records_with_images(family)
    exact = TreeLM(tiny_vision_model(family))
    (row,), (wide,) = (rows_of(family, records, Merging.TREE, 1000) for _ in range(2))
    found_E, _ = row_logprobs(lm, row, attn=lm.mask("cpu"))
    expected_E, _ = row_logprobs(exact, wide)
    assert (found_E.double() - expected_E).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "trained"),
    [("smolvlm", "all of it"), ("qwen2_5_vl", "language model"), ("qwen3_vl", "adapters"), ("qwen3_vl", "all of it")],
)
def test_two_processes_train_as_one_and_continue_from_a_checkpoint(tmp_path: Path, family: str, trained: str) -> None:
    trainable = TRAINED[trained]
    if (family, trained) == (
        "smolvlm",
        "all of it",
    ):  # attention does not see a key's bias: Adam would scale rounding up
        trainable = trainable.model_copy(update={"freeze": ["model.vision_model.*.k_proj.bias"]})
    comparison = VisionComparison(tmp_path, family, trainable)
    one, two = comparison.trained(Layout(1)), comparison.trained(Layout(2))
    assert relative_difference(two, one) < 1e-7
    assert relative_difference(comparison.continued(Layout(2), Layout(1)), one) < 1e-7
    before = tiny_vision_model(family).state_dict()
    moved = {name for name in one if name in before and not torch.equal(one[name], before[name])}
    of_tower = {name for name in moved if name.startswith(tuple(vision_parts(tiny_vision_model(family))))}
    assert bool(of_tower) == (trained == "all of it")
    assert moved or trained == "adapters"


@pytest.mark.parametrize("trained", TRAINED)
def test_the_tower_is_trained_only_with_train_vision(trained: str) -> None:
    model = tiny_vision_model("smolvlm")
    choose_trained(model, TRAINED[trained])
    tower = tuple(vision_parts(model))
    assert len(tower) == 2
    in_tower = {name for name, p in model.named_parameters() if p.requires_grad and name.startswith(tower)}
    outside = {name for name, p in model.named_parameters() if p.requires_grad and not name.startswith(tower)}
    assert outside
    assert bool(in_tower) == TRAINED[trained].train_vision
    assert bool(lora_layers(model)) == (TRAINED[trained].lora is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_written_model_reads_images_as_the_trained_one(tmp_path: Path, family: str, alone: Parallel) -> None:
    tiny_vision_model(family).save_pretrained(tmp_path / "model")
    learner = exact_learner(tmp_path / "model", alone, LOSS, Trainable(lora=LoraSettings(lora_rank=2)))
    take_vision_steps(learner, family, 2, alone)
    written = write_weights(learner.causal_lm, tmp_path / "model", tmp_path / "written", alone)
    again = AutoModelForImageTextToText.from_pretrained(written.path, dtype=torch.float64).eval()
    (row,) = rows_of(family, records_with_images(family), Merging.TREE, 1000)
    trained_E, _ = row_logprobs(learner._accumulator.lm, row, attn=learner._accumulator.mask)
    again_E, _ = row_logprobs(TreeLM(again), row)
    first_E, _ = row_logprobs(TreeLM(tiny_vision_model(family)), row)
    assert (again_E - trained_E).abs().max() < 1e-6  # float32 of the rotary positions
    assert (first_E - trained_E).abs().max() > 1e-3


@pytest.mark.parametrize("trained", ["language model", "all of it"])
def test_features_of_a_frozen_tower_are_cached_until_the_weights_leave_the_device(
    tmp_path: Path, alone: Parallel, trained: str
) -> None:
    tiny_vision_model("smolvlm").save_pretrained(tmp_path / "model")
    learner = exact_learner(tmp_path / "model", alone, LOSS, TRAINED[trained])
    take_vision_steps(learner, "smolvlm", 1, alone)
    tower = learner.lm._vision
    assert tower is not None
    images = {digest for digest in ("aa", "bb", "cc") if digest in tower._cached}
    assert images == ({"aa", "bb", "cc"} if trained == "language model" else set())
    to_host(learner, torch.device("cpu"))
    assert not tower._cached


def test_images_are_refused_where_they_cannot_be_read(tmp_path: Path, alone: Parallel) -> None:
    records = records_with_images("smolvlm")
    (row,) = pack([merge(records)], 1000)
    with pytest.raises(DataError, match="3 images in a row, pixels of 0"):
        row_logprobs(TreeLM(tiny_vision_model("smolvlm")), row)
    with pytest.raises(DataError, match="expected text alone for a model of type qwen3"):
        row_logprobs(TreeLM(tiny_model()), row)
    tiny_model().save_pretrained(tmp_path / "text")
    with pytest.raises(ConfigError, match="without a vision tower; expected false"):
        open_learner(tmp_path / "text", LOSS, OPTIMIZER, alone, LearnerOptions(trainable=TRAINED["all of it"]))
    tiny_vision_model("smolvlm").save_pretrained(tmp_path / "vision")
    with pytest.raises(ConfigError, match="is not trained with compile_layers true"):
        open_learner(tmp_path / "vision", LOSS, OPTIMIZER, alone, LearnerOptions(compile_layers=True))
