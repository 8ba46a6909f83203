"""Any number of processes, sharing the data or the layers or both, trains the same parameters and continues another's.

A few layouts; `python -m tests.trainer.layouts`, with and without `--experts`, compares each with every other.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import DogeConfig

from shared.errors import ConfigError
from shared.weights.files import WEIGHTS_FILE
from tests.trainer import exactness_table
from tests.trainer.builders import random_group, relative_difference, tiny_experts_model, tiny_model
from tests.trainer.launched import OPTIMIZER, take_steps
from tests.trainer.layouts import BALANCED, MAX_TOKENS, Comparison, Layout, comparison, run
from tests.trainer.loss_cases import LOSSES
from trainer.losses import LossConfig
from trainer.modeling.context_parallel import check_slices, of_slices
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.tensor_parallel import cut_layers
from trainer.process.parallel import LaunchError, Parallel, parallel_session
from trainer.publishing.weights import write_weights
from trainer.step.opening import open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import merge

ONE, TWO, FOUR = Layout(1), Layout(2), Layout(4)
TWO_FOR_A_LAYER, TWO_BY_TWO = Layout(1, tp=2), Layout(2, tp=2)
TWO_FOR_A_ROW, FOUR_FOR_A_ROW = Layout(1, cp=2), Layout(1, cp=4)  # of two key heads: four processes need copies of them
ROWS_AND_DATA, ROWS_AND_LAYERS = Layout(2, cp=2), Layout(1, tp=2, cp=2)
REPLAYED = ("experts/replayed_fraction", "experts/replay_differs_fraction")
REPORTED = ("learner/grad_norm", "loss/loss", "loss/router_aux_loss", "experts/load_imbalance_mean")
OF_A_ROW = ("minirl, proximal", "grpo, entropy", "gspo", "gspo, entropy and kl")


@pytest.fixture(scope="module")
def compared() -> Iterator[Comparison]:
    with comparison() as compared:
        yield compared


@pytest.mark.thorough
def test_every_layout_trains_the_parameters_of_one_process_and_another_continues_it(compared: Comparison) -> None:
    expected = compared.trained(ONE)
    for layout in (FOUR, TWO_BY_TWO, ROWS_AND_DATA):
        assert relative_difference(compared.trained(layout), expected) < 1e-9, layout
    for saved_by, layout in ((FOUR, ONE), (TWO_BY_TWO, TWO)):
        found = compared.continued(saved_by, layout)
        assert relative_difference(found, expected) < 1e-9, f"{layout} from the checkpoint of {saved_by}"


def test_the_processes_of_a_layer_share_rows_and_hold_half_of_it_each() -> None:
    def work(parallel: Parallel) -> None:
        assert (parallel.data.rank, parallel.data.size) == (parallel.rank // 2, 2)
        model = tiny_model()
        whole = model.model.layers[0].mlp.up_proj.weight.shape
        cut_layers(model, parallel.mesh["tp"], torch.device("cpu"))
        weight = model.model.layers[0].mlp.up_proj.weight
        assert weight.to_local().shape == (whole[0] // 2, whole[1])

    run(TWO_BY_TWO, work)


@pytest.mark.parametrize("layout", [TWO_FOR_A_ROW, pytest.param(FOUR_FOR_A_ROW, marks=pytest.mark.thorough)], ids=str)
def test_the_processes_of_a_row_have_the_gradient_of_one_forward_per_sequence(layout: Layout, tmp_path: Path) -> None:
    cases = {name: LOSSES[name] for name in OF_A_ROW}

    def work(parallel: Parallel) -> None:
        assert (parallel.data.size, parallel.context.rank) == (1, parallel.rank)
        results = exactness_table.found(cases, parallel)
        torch.save(results, tmp_path / f"{parallel.rank}.pt")

    run(layout, work)
    wanted = exactness_table.expected(cases)
    for rank in range(layout.processes):  # each reports the same loss and metrics, every token counted once
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        table = exactness_table.differences(found, wanted)
        assert max(max(row.values()) for row in table.values()) < exactness_table.TOLERANCE, table


def test_each_process_of_a_row_computes_its_slice_of_the_tokens() -> None:
    """Of 64 tokens by 48 hidden units, 32 go through the matrices here."""
    (row,) = pack([merge(random_group(3))], 1000)
    row = row.padded(64)

    def work(parallel: Parallel) -> None:
        model = tiny_model(attention=of_slices("sdpa", parallel.context))
        shapes = []
        model.model.layers[0].mlp.up_proj.register_forward_hook(lambda _, args, out: shapes.append(tuple(out.shape)))
        row_logprobs(TreeLM(model, parallel.context), row)
        assert shapes == [(1, 32, 48)]

    run(TWO_FOR_A_ROW, work)


def test_rows_through_shared_layers_have_few_lengths() -> None:
    """DTensor derives the sharding of every operation anew for each."""
    rows = pack([merge(random_group(seed)) for seed in range(3)], 30)
    assert len({row.num_tokens for row in rows}) > 1

    def work(parallel: Parallel) -> None:
        model = tiny_model()
        cut_layers(model, parallel.mesh["tp"], torch.device("cpu"))
        lm = TreeLM(model, tp_size=2)
        expected = [row_logprobs(TreeLM(model), row)[0] for row in rows]
        lengths = set()
        model.model.layers[0].mlp.up_proj.register_forward_hook(lambda _, args, out: lengths.add(out.shape[1]))
        for row, wanted in zip(rows, expected, strict=True):
            torch.testing.assert_close(row_logprobs(lm, row)[0], wanted)
        assert lengths == {64}

    run(TWO_FOR_A_LAYER, work)


def test_a_row_is_not_shared_where_a_layer_would_need_its_neighbor() -> None:
    def work(parallel: Parallel) -> None:
        with pytest.raises(
            ConfigError, match="chunk_size is 8; expected full attention and sliding windows only for cp_s"
        ):
            check_slices(tiny_model(), parallel.context, tp_size=1, obstacle="chunk_size is 8")
        model = tiny_model()
        model.config.num_attention_heads = 6
        with pytest.raises(ConfigError, match="cp_size is 2 and tp_size 2, but num_attention_heads is 6"):
            check_slices(model, parallel.context, tp_size=2, obstacle=None)

    run(TWO_FOR_A_ROW, work)


@pytest.mark.thorough
def test_experts_shared_out_train_the_parameters_of_one_process_and_report_its_numbers() -> None:
    """With the loss that balances them, whose tokens are on all processes."""
    with comparison(model=tiny_experts_model(), loss=BALANCED) as compared:
        expected = compared.trained(ONE)
        for layout in (TWO, ROWS_AND_LAYERS):
            assert relative_difference(compared.trained(layout), expected) < 1e-9, layout
            for name in REPORTED:
                found, wanted = compared.metrics[layout][name], compared.metrics[ONE][name]
                assert found == pytest.approx(wanted, rel=1e-9), f"{name} of {layout}"
        for saved_by, layout in ((ROWS_AND_LAYERS, ONE),):
            found = compared.continued(saved_by, layout)
            assert relative_difference(found, expected) < 1e-9, f"{layout} from the checkpoint of {saved_by}"


def test_replayed_experts_train_the_parameters_of_one_process_and_report_its_numbers() -> None:
    """With the loss that balances them, which counts the experts that the tokens got."""
    with comparison(model=tiny_experts_model(), loss=BALANCED, replayed=True) as compared:
        expected = compared.trained(ONE)
        for layout in (TWO, ROWS_AND_LAYERS):
            assert relative_difference(compared.trained(layout), expected) < 1e-9, layout
            for name in (*REPORTED, *REPLAYED):
                found, wanted = compared.metrics[layout][name], compared.metrics[ONE][name]
                assert found == pytest.approx(wanted, rel=1e-9), f"{name} of {layout}"
        assert 0 < compared.metrics[ONE][REPLAYED[0]] < 1


@pytest.mark.thorough
def test_the_processes_of_a_layer_hold_their_experts_and_write_all(tmp_path: Path) -> None:
    """In float32, by the kernel that takes many experts at once: measured 5e-6."""
    tiny_experts_model(dtype=torch.float32).save_pretrained(tmp_path / "model")

    def train(parallel: Parallel) -> None:
        learner = open_learner(tmp_path / "model", LossConfig(), OPTIMIZER, parallel)
        held = learner.causal_lm.get_parameter("model.layers.1.mlp.experts.gate_up_proj")
        assert len(held.to_local() if isinstance(held, DTensor) else held) * parallel.world_size == 4
        take_steps(learner, 2, MAX_TOKENS, parallel)
        write_weights(learner.causal_lm, tmp_path / "model", tmp_path / str(parallel.world_size), parallel)

    for layout in (ONE, TWO_BY_TWO):
        run(layout, train)
    expected = load_file(tmp_path / "1" / WEIGHTS_FILE)
    assert expected.keys() == load_file(tmp_path / "model" / WEIGHTS_FILE).keys()
    assert relative_difference(load_file(tmp_path / "4" / WEIGHTS_FILE), expected) < 1e-4


def test_experts_and_plans_that_cannot_be_shared_out_are_refused() -> None:
    def work(parallel: Parallel) -> None:
        mesh, cpu = parallel.mesh["tp"], torch.device("cpu")
        with pytest.raises(ConfigError, match="tp_size is 2, but num_experts is 3"):
            cut_layers(tiny_experts_model(num_experts=3), mesh, cpu)
        model = tiny_experts_model()
        model.set_experts_implementation("eager")
        with pytest.raises(
            ConfigError, match="experts_implementation of model type qwen3_moe is eager; expected grouped"
        ):
            cut_layers(model, mesh, cpu)
        model = tiny_experts_model()
        model.config.base_model_ep_plan = None
        with pytest.raises(ConfigError, match=r"gate_up_proj as 'packed_colwise'; expected .* tp_size 1 is needed"):
            cut_layers(model, mesh, cpu)

    run(TWO_FOR_A_LAYER, work)


def test_a_plan_with_two_sums_in_a_block_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    """Doge: its mask has all heads. The folder has no weights."""
    DogeConfig().save_pretrained(tmp_path)

    def work(parallel: Parallel) -> None:
        with pytest.raises(
            ConfigError, match=r"model type doge: its plan cuts two matrices of layers\.\*\.self_attn .* tp_s"
        ):
            open_learner(tmp_path, LossConfig(), OPTIMIZER, parallel)

    run(TWO_FOR_A_LAYER, work)


def test_heads_and_processes_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(LaunchError, match="tp_size is 2, but 1 processes came up"), parallel_session("cpu", tp_size=2):
        pass

    def work(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match="tp_size is 4, but num_key_value_heads is 2"):
            cut_layers(tiny_model(), parallel.mesh["tp"], torch.device("cpu"))

    run(Layout(1, tp=4), work)
