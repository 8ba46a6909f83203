"""Mixtures of experts in stages train what one process trains: balanced, spread over processes, with an engine's choices.

`python -m tests.trainer.layouts --experts --replay --layouts 1,1x1x1x3,2x1x1x2x2,1x2x1x2x2,1x1x2x2x2` compares more layouts.
"""

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeForCausalLM

from shared.errors import ConfigError
from shared.weights.files import WEIGHTS_FILE
from tests.trainer.builders import random_group, relative_difference, spread, tiny_experts_model, tiny_model
from tests.trainer.launched import OPTIMIZER, exact_learner, full_parameters, take_steps
from tests.trainer.layouts import BALANCED, MAX_TOKENS, Comparison, Layout, comparison, run
from tests.trainer.loss_cases import LOSSES
from tests.trainer.replayed import LAYERS, NUM_EXPERTS, TOP_K
from tests.trainer.stages import of_stage
from trainer.modeling.attention import no_mask
from trainer.modeling.expert_parallel import spread_experts
from trainer.modeling.forward import Forwarded, StageOutput, TreeLM, forward_row, forward_stage
from trainer.modeling.forward_ways import Head
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.process.parallel import LaunchError, Parallel, Sizes, _described
from trainer.publishing.weights import write_weights
from trainer.settings.memory import MemorySettings
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.experts import RowExperts
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

pytestmark = pytest.mark.slow

ONE, TWO_STAGES, THREE_STAGES = (
    Layout(1),
    Layout(1, pp=2),
    Layout(1, pp=3),
)  # the first of three has a dense layer alone
SPREAD_INSIDE = Layout(2, pp=2, ep=2)
FURTHER = (Layout(2, pp=2), Layout(1, tp=2, pp=2), Layout(1, tp=2, pp=2, ep=2), Layout(1, cp=2, pp=2, ep=2))
REPORTED = (
    *("learner/grad_norm", "loss/loss", "loss/router_aux_loss", "experts/load_imbalance_mean"),
    *("experts/unused_fraction", "experts/replayed_fraction", "experts/replay_differs_fraction"),
)


def check_same(compared: Comparison, layout: Layout) -> None:
    expected = compared.trained(ONE)
    assert relative_difference(compared.trained(layout), expected) < 1e-9
    for name in REPORTED:
        assert compared.metrics[layout][name] == pytest.approx(compared.metrics[ONE][name], rel=1e-9), name
    assert 0 < compared.metrics[ONE]["experts/replayed_fraction"] < 1
    assert compared.metrics[ONE]["loss/router_aux_loss"] > 0


@pytest.fixture(scope="module")
def compared() -> Iterator[Comparison]:
    with comparison(model=tiny_experts_model(), loss=BALANCED, replayed=True) as compared:
        yield compared


@pytest.mark.parametrize(
    "layout",
    [THREE_STAGES, SPREAD_INSIDE, *(pytest.param(one, marks=pytest.mark.thorough) for one in FURTHER)],
    ids=str,
)
def test_balanced_and_replayed_experts_train_the_parameters_of_one_process(
    layout: Layout, compared: Comparison
) -> None:
    """Every metric of the experts is that of one process too."""
    check_same(compared, layout)


@pytest.mark.thorough
@pytest.mark.parametrize("layout", [THREE_STAGES, SPREAD_INSIDE], ids=str)
def test_stages_with_experts_and_one_process_continue_each_others_checkpoints(
    layout: Layout, compared: Comparison
) -> None:
    check_same(compared, layout)
    for saved_by, continued_by in ((layout, ONE), (ONE, layout)):
        found = compared.continued(saved_by, continued_by)
        assert relative_difference(found, compared.trained(ONE)) < 1e-9, f"{continued_by} from {saved_by}"


def test_two_passes_balance_experts_next_to_a_reference_model_that_chooses_by_itself(tmp_path: Path) -> None:
    loss = LOSSES["gspo, entropy and kl"].model_copy(update={"router_aux_loss_coef": 0.1})
    tiny_experts_model().save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        learner = exact_learner(tmp_path / "model", parallel, loss)
        metrics = take_steps(learner, 2, 12, parallel, every_token=True, replayed=True)
        parameters = full_parameters(learner)
        if parallel.is_main:
            torch.save((parameters, metrics), tmp_path / f"{parallel.pp_size}.pt")

    for layout in (ONE, TWO_STAGES):
        run(layout, work)
    (expected, of_one), (found, of_two) = (torch.load(tmp_path / f"{n}.pt", weights_only=True) for n in (1, 2))
    assert relative_difference(found, expected) < 1e-9
    assert of_two["learner/passes"] == 2
    for name in REPORTED:
        assert of_two[name] == pytest.approx(of_one[name], rel=1e-9), name


def test_layers_that_are_computed_again_repeat_the_experts_of_their_own_row(tmp_path: Path) -> None:
    """Other rows have gone forward since."""
    tiny_experts_model().save_pretrained(tmp_path)

    def work(parallel: Parallel) -> None:
        learners = []
        for again in (False, True):
            options = LearnerOptions(dtype="float64", memory=MemorySettings(activation_checkpointing=again))
            learners.append(open_learner(tmp_path, BALANCED, OPTIMIZER, parallel, options))
            metrics = take_steps(learners[-1], 1, MAX_TOKENS, parallel, every_token=True, replayed=True)
            assert metrics["learner/rounds"] > parallel.pp_size
        assert relative_difference(*(full_parameters(learner) for learner in learners)) < 1e-12

    run(TWO_STAGES, work)


@pytest.mark.parametrize("head", [Head.CHUNKED, Head.WHOLE])
@pytest.mark.parametrize("dense", [0, 2])
@pytest.mark.parametrize("with_dense_layers", [True, False])
def test_each_stage_repeats_the_choices_of_its_own_layers(with_dense_layers: bool, dense: int, head: Head) -> None:
    """In arrays of all layers, and of those with experts alone: bit by bit what the whole model computes, by either head. The
    first or the last of three stages has a dense layer alone.
    """
    config = tiny_experts_model().config
    config.mlp_only_layers = [dense]
    model = spread(Qwen3MoeForCausalLM(config).to(torch.float64))
    row, *_ = pack([merge(random_group(2), merging=Merging.LINEAR)], 1000, one_sequence_per_row=True)
    width = (LAYERS if with_dense_layers else LAYERS - 1) * TOP_K
    orders = torch.rand(row.num_tokens, width // TOP_K, NUM_EXPERTS, generator=torch.Generator().manual_seed(1))
    experts = orders.argsort(-1)[..., :TOP_K].flatten(1).to(torch.uint8)
    replayed = dataclasses.replace(row, experts=RowExperts(experts, torch.ones(row.num_tokens, dtype=torch.bool)))
    whole = TreeLM(copy.deepcopy(model))
    whole.way = dataclasses.replace(whole.way, trees=False, head=head)
    expected = forward_row(whole, replayed, attn=no_mask)
    assert not torch.allclose(forward_row(whole, row, attn=no_mask).logprob_E, expected.logprob_E, atol=1e-3)
    hidden, chosen = None, []
    for number in range(3):
        part = copy.deepcopy(model)
        lm = TreeLM(part, stage=cut_stages(part, of_stage(number, 3), dtype=torch.float64))
        lm.way = whole.way
        result = forward_stage(lm, replayed, hidden, chunk=512, attn=no_mask, with_entropy=False)
        hidden = result.hidden if isinstance(result, StageOutput) else None
        chosen += [] if result.routing is None else [result.routing.chosen_LX]
    assert isinstance(result, Forwarded)
    assert torch.equal(result.logprob_E, expected.logprob_E)
    assert expected.routing is not None
    assert torch.equal(torch.cat(chosen), expected.routing.chosen_LX)


def test_all_experts_are_loaded_and_written_by_the_first_processes(tmp_path: Path) -> None:
    """Of stages in which processes share the experts."""
    tiny_experts_model().save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        settings = dataclasses.replace(parallel.settings, first_loads=True)
        learner = exact_learner(tmp_path / "model", dataclasses.replace(parallel, settings=settings), BALANCED)
        take_steps(learner, 1, MAX_TOKENS, parallel, every_token=True)
        write_weights(learner.causal_lm, tmp_path / "model", tmp_path / str(parallel.world_size), parallel)

    for layout in (ONE, SPREAD_INSIDE):
        run(layout, work)
    expected = load_file(tmp_path / "1" / WEIGHTS_FILE)
    assert expected.keys() == load_file(tmp_path / "model" / WEIGHTS_FILE).keys()
    assert relative_difference(load_file(tmp_path / "4" / WEIGHTS_FILE), expected) < 1e-9


def test_stages_without_experts_are_none_of_a_model_without() -> None:
    """Experts are spread within a stage: a stage may have dense layers alone."""
    with pytest.raises(LaunchError, match=r"ep_size is 2 and pp_size 2, but 2 processes .* expected a multiple of 4"):
        _described(torch.device("cpu"), 2, Sizes(tp=1, cp=1, pp=2, ep=2))

    def work(parallel: Parallel) -> None:
        dense_stage = tiny_experts_model()
        cut_stages(dense_stage, of_stage(0, 3), dtype=torch.float64)
        spread_experts(dense_stage, parallel)
        with pytest.raises(ConfigError, match="ep_size is 2, but model type qwen3 has no plan for expert parallelism"):
            spread_experts(tiny_model(), parallel)

    run(SPREAD_INSIDE, work)
