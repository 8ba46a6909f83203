"""Rows through stages train the parameters of one process, whatever the stages hold; what cannot be split is refused."""

import copy
import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import patch

import peft  # noqa: F401  # takes seconds, which forks share
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from shared.weights.files import WEIGHTS_FILE
from tests.trainer import exactness_table
from tests.trainer.builders import relative_difference, tiny_model
from tests.trainer.launched import OPTIMIZER, exact_learner, full_parameters, rows_of_step, take_steps
from tests.trainer.layouts import MAX_TOKENS, Comparison, Layout, comparison, run
from tests.trainer.loss_cases import LOSSES
from trainer.losses import LossConfig
from trainer.modeling.attention import dense_mask
from trainer.modeling.forward import TreeLM
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.process.parallel import Parallel
from trainer.process.shard_settings import ShardSettings
from trainer.publishing.adapter import gather_adapter
from trainer.publishing.weights import write_weights
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner

pytestmark = pytest.mark.slow

ONE, TWO_STAGES, STAGES_AND_DATA = Layout(1), Layout(1, pp=2), Layout(2, pp=2)
THREE_STAGES, FOUR_STAGES = Layout(1, pp=3), Layout(1, pp=4)
SLICES, TP_AND_STAGES = Layout(1, cp=2, pp=2), Layout(1, tp=2, pp=2)
LORA = Trainable(lora_rank=4, lora_alpha=8.0)
REPORTED = ("learner/grad_norm", "loss/loss", "learner/trajectories")
OF_STAGES = ("minirl, proximal", "grpo, entropy", "gspo", "gspo, entropy and kl")


def check_same(compared: Comparison, layout: Layout) -> None:
    expected = compared.trained(ONE)
    assert relative_difference(compared.trained(layout), expected) < 1e-9
    for name in REPORTED:
        assert compared.metrics[layout][name] == pytest.approx(compared.metrics[ONE][name], rel=1e-9), name
    assert relative_difference(compared.continued(ONE, layout), expected) < 1e-9
    assert relative_difference(compared.continued(layout, ONE), expected) < 1e-9


def test_two_stages_with_a_tied_matrix_train_the_parameters_of_one_process_and_each_continues_the_other() -> None:
    with comparison() as compared:
        check_same(compared, TWO_STAGES)


def test_uneven_stages_of_sharded_layers_train_the_parameters_of_one_process() -> None:
    """With a reference model, in stages too."""
    with comparison(model=tiny_model(tied=False, layers=3), loss=LOSSES["gspo, entropy and kl"]) as compared:
        check_same(compared, STAGES_AND_DATA)


def test_slices_of_rows_go_through_stages() -> None:
    """The model's own forward, with which ways are compared, has whole rows in stages too."""
    with comparison() as compared:
        assert relative_difference(compared.trained(SLICES), compared.trained(ONE)) < 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("layout", [FOUR_STAGES, TP_AND_STAGES, SLICES], ids=str)
def test_stages_go_with_every_other_way_to_share_a_model(layout: Layout) -> None:
    with comparison(model=tiny_model(layers=5)) as compared:
        check_same(compared, layout)


@pytest.mark.parametrize("layout", [TWO_STAGES, pytest.param(STAGES_AND_DATA, marks=pytest.mark.thorough)], ids=str)
def test_adapters_train_in_stages_as_in_one_process(layout: Layout) -> None:
    """With a reference model, which is what lies below them."""
    with comparison(LORA, loss=LOSSES["gspo, entropy and kl"]) as compared:
        check_same(compared, layout)


@pytest.mark.parametrize(
    "frozen", [["model.embed_tokens.*", "model.layers.0.*"], ["model.layers.1.*", "model.norm.*", "lm_head.*"]]
)
def test_a_stage_may_have_nothing_to_train(frozen: list[str]) -> None:
    """The first, which then needs no gradient, or the last, through which gradients pass."""
    with comparison(Trainable(freeze=frozen), model=tiny_model(tied=False)) as compared:
        check_same(compared, TWO_STAGES)


@pytest.mark.parametrize("layout", [TWO_STAGES, pytest.param(STAGES_AND_DATA, marks=pytest.mark.thorough)], ids=str)
def test_stages_have_the_gradient_of_one_forward_per_sequence(layout: Layout, tmp_path: Path) -> None:
    """One pass and two, a reference model, entropies, a proximal anchor, rows of trees and of sequences."""
    cases = {name: LOSSES[name] for name in OF_STAGES}

    def work(parallel: Parallel) -> None:
        torch.save(exactness_table.found(cases, parallel), tmp_path / f"{parallel.rank}.pt")

    run(layout, work)
    expected = exactness_table.expected(cases)
    for rank in range(layout.processes):  # each stage reports the same loss
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        table = exactness_table.differences(found, expected)
        assert max(max(row.values()) for row in table.values()) < exactness_table.TOLERANCE, table


@pytest.mark.parametrize("tied", [True, False])
def test_rank_0_writes_the_weights_and_adapters_of_all_stages(tied: bool, tmp_path: Path) -> None:
    tiny_model(tied=tied).save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        assert sum(parallel.everyone.gather_objects(parallel.is_first_of_its_rows)) == parallel.data.size
        for kind, trainable in (("full", EVERYTHING), ("adapters", LORA)):
            learner = exact_learner(tmp_path / "model", parallel, trainable=trainable)
            take_steps(learner, 1, MAX_TOKENS, parallel)
            target = tmp_path / f"{kind}-{parallel.world_size}"
            write_weights(learner.causal_lm, tmp_path / "model", target, parallel)
            adapter = gather_adapter(learner.causal_lm, parallel)
            assert parallel.is_main or not adapter
            if parallel.is_main:
                torch.save(adapter, target / "adapter.pt")

    for layout in (ONE, STAGES_AND_DATA):
        run(layout, work)
    for kind in ("full", "adapters"):
        expected, found = (load_file(tmp_path / f"{kind}-{n}" / WEIGHTS_FILE) for n in (1, 4))
        assert list(found) == list(expected)
        assert relative_difference(found, expected) < 1e-9
        expected, found = (torch.load(tmp_path / f"{kind}-{n}" / "adapter.pt", weights_only=True) for n in (1, 4))
        assert bool(expected) == (kind == "adapters")
        if expected:
            assert relative_difference(found, expected) < 1e-9


@pytest.mark.parametrize(
    ("layout", "tied"),
    [
        (STAGES_AND_DATA, True),
        (TP_AND_STAGES, False),
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in ((STAGES_AND_DATA, False), (TP_AND_STAGES, True))),
    ],
    ids=str,
)
def test_the_first_process_of_each_stage_loads_for_the_others(layout: Layout, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(tied=tied)
    model.save_pretrained(tmp_path)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def work(parallel: Parallel) -> None:
        if parallel.rank % 2:
            refuse_to_load = patch(
                "trainer.modeling.sharded_loading.load_model", side_effect=AssertionError("it has no files")
            )
            refuse_to_load.start()
        settings = dataclasses.replace(parallel.settings, first_loads=True)
        learner = exact_learner(tmp_path, dataclasses.replace(parallel, settings=settings))
        found = full_parameters(learner)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        take_steps(learner, 1, MAX_TOKENS, parallel)

    run(layout, work)


def test_a_stage_holds_its_own_layers_and_the_activations_of_few_rows() -> None:
    """1F1B: of at most as many rows as there are stages from it on."""

    def work(parallel: Parallel) -> None:
        learner = stage_learner(tiny_model(layers=4), parallel)
        held = {name.split(".")[2] for name, _ in learner.causal_lm.named_parameters() if ".layers." in name}
        assert len(held) == 2
        rows, _ = rows_of_step(0, 12, parallel)
        assert len(rows) > 4
        open_rows, most = 0, 0

        def began(_: nn.Module, args: Any, result: Any) -> None:
            nonlocal open_rows, most
            hidden = result.last_hidden_state
            if hidden.requires_grad:
                open_rows += 1
                most = max(most, open_rows)
                hidden.register_hook(ended)

        def ended(_: Tensor) -> None:
            nonlocal open_rows
            open_rows -= 1

        learner.causal_lm.base_model.register_forward_hook(began)
        take_steps(learner, 1, 12, parallel)
        assert (open_rows, most) == (0, 2 - parallel.rank)

    run(TWO_STAGES, work)


def stage_learner(model: nn.Module, parallel: Parallel, **options: Any) -> Learner:
    """Of a model in memory."""
    with (
        patch("trainer.step.opening.load_model", lambda *_, **__: copy.deepcopy(model)),
        patch("trainer.step.opening.load_config", lambda _: model.config),
    ):
        return open_learner(
            Path("a_model"), LossConfig(), OPTIMIZER, parallel, LearnerOptions(**{"dtype": "float64", **options})
        )


def test_bfloat16_and_recomputed_layers_go_through_stages() -> None:
    """In bfloat16 hidden states travel in it; recomputed layers change no parameter. The second stage has neither end."""

    def work(parallel: Parallel) -> None:
        learners = [
            stage_learner(tiny_model(layers=3), parallel, memory=MemorySettings(activation_checkpointing=again))
            for again in (False, True)
        ]
        for learner in learners:
            take_steps(learner, 1, MAX_TOKENS, parallel)
        assert relative_difference(*(full_parameters(learner) for learner in learners)) < 1e-12
        bf16 = dataclasses.replace(parallel, settings=ShardSettings("bf16"))
        learner = stage_learner(tiny_model(dtype=torch.float32, layers=3), bf16, dtype="float32")
        assert learner.lm.stage is not None
        assert learner.lm.stage.dtype == torch.bfloat16
        before = full_parameters(learner)
        metrics = learner.step(*rows_of_step(0, MAX_TOKENS, bf16)).metrics
        assert metrics["learner/grad_norm"] > 0
        assert all(not torch.equal(tensor, before[name]) for name, tensor in full_parameters(learner).items())

    run(THREE_STAGES, work)


def test_an_error_on_one_stage_while_ways_are_compared_is_one_on_every_stage() -> None:
    """Else the others would wait for its hidden states."""

    def work(parallel: Parallel) -> None:
        model = tiny_model()
        lm = TreeLM(model, stage=cut_stages(model, parallel, dtype=torch.float64))
        if parallel.rank == 1:
            model.model.norm.register_forward_hook(fail)
        pipeline = RowPipeline(lm, parallel.device, attn=dense_mask)
        with pytest.raises(RuntimeError, match="stage 1: LookupError: no such norm"):
            pipeline.rehearse(rows_of_step(0, 12, parallel)[0], (LookupError,))

    def fail(*_: Any) -> None:
        raise LookupError("no such norm")

    run(TWO_STAGES, work)
