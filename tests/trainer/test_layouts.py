"""Any number of processes, sharing the data or the layers or both, trains the same parameters and continues another's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from shared.errors import ConfigError
from tests.trainer import exactness_table
from tests.trainer.builders import VOCABULARY, random_group, relative_difference, tiny_model
from tests.trainer.launched import OPTIMIZER, full_parameters, take_steps
from tests.trainer.layouts import MAX_TOKENS, Comparison, Layout, comparison, run
from tests.trainer.loss_cases import LOSSES
from trainer.context_parallel import cut_sequences, of_slices
from trainer.forward import TreeLM, row_logprobs
from trainer.learner import open_learner
from trainer.losses import LossConfig
from trainer.packing import pack
from trainer.parallel import LaunchError, Parallel, parallel_session
from trainer.tensor_parallel import cut_layers
from trainer.tree import merge

ONE, TWO, FOUR = Layout(1), Layout(2), Layout(4)
TWO_FOR_A_LAYER, TWO_BY_TWO = Layout(1, tp=2), Layout(2, tp=2)
TWO_FOR_A_ROW, FOUR_FOR_A_ROW = Layout(1, cp=2), Layout(1, cp=4)  # of two key heads: four processes need copies of them
ROWS_AND_DATA, ROWS_AND_LAYERS = Layout(2, cp=2), Layout(1, tp=2, cp=2)
OF_A_ROW = ("minirl, proximal", "grpo, entropy", "gspo", "gspo, entropy and kl")


@pytest.fixture(scope="module")
def compared() -> Iterator[Comparison]:
    with comparison() as compared:
        yield compared


def test_every_layout_trains_the_parameters_of_one_process_and_another_continues_it(compared: Comparison) -> None:
    expected = compared.trained(ONE)
    for layout in (TWO, FOUR, TWO_FOR_A_LAYER, TWO_BY_TWO, ROWS_AND_DATA, ROWS_AND_LAYERS):
        assert relative_difference(compared.trained(layout), expected) < 1e-9, layout
    for saved_by, layout in ((TWO, ONE), (TWO, FOUR), (TWO_BY_TWO, ROWS_AND_LAYERS), (ROWS_AND_DATA, TWO_FOR_A_LAYER)):
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


@pytest.mark.parametrize("layout", [TWO_FOR_A_ROW, FOUR_FOR_A_ROW], ids=str)
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


def test_a_row_is_not_shared_where_a_layer_would_need_its_neighbor() -> None:
    def work(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match="sliding_window is 8; expected full attention only for cp_size 2"):
            cut_sequences(tiny_model(), parallel.context, tp_size=1, obstacle="sliding_window is 8")
        model = tiny_model()
        model.config.num_attention_heads = 6
        with pytest.raises(ConfigError, match="cp_size is 2 and tp_size 2, but num_attention_heads is 6"):
            cut_sequences(model, parallel.context, tp_size=2, obstacle=None)

    run(TWO_FOR_A_ROW, work)


def test_experts_share_data_and_rows_and_are_refused_where_layers_are_shared(tmp_path: Path) -> None:
    """In float32, which is all that the experts' kernel takes: measured 5e-6."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    config = Qwen3MoeConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, **heads, **experts)
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "model")

    def train(parallel: Parallel) -> None:
        learner = open_learner(tmp_path / "model", LossConfig(), OPTIMIZER, parallel)
        take_steps(learner, 2, MAX_TOKENS, parallel)
        parameters = full_parameters(learner)
        if parallel.is_main:
            torch.save(parameters, tmp_path / "result.pt")

    def refuse(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match=r"gate_up_proj as 'packed_colwise'; expected .* tp_size 1 is needed"):
            open_learner(tmp_path / "model", LossConfig(), OPTIMIZER, parallel)

    results = []
    for layout in (ONE, TWO, TWO_FOR_A_ROW):
        run(layout, train)
        results.append(torch.load(tmp_path / "result.pt", weights_only=True))
    assert all(relative_difference(found, results[0]) < 1e-4 for found in results[1:])
    run(TWO_FOR_A_LAYER, refuse)


def test_heads_and_processes_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(LaunchError, match="tp_size is 2, but 1 processes came up"), parallel_session("cpu", tp_size=2):
        pass

    def work(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match="tp_size is 4, but num_key_value_heads is 2"):
            cut_layers(tiny_model(), parallel.mesh["tp"], torch.device("cpu"))

    run(Layout(1, tp=4), work)
