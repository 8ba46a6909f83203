"""Processes that share rows compute a layer with a sliding window as one process does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from shared.errors import ConfigError
from tests.trainer.builders import VOCABULARY, RecordBuilder, random_group, relative_difference, spread
from tests.trainer.layouts import Layout, comparison, run
from trainer.modeling.attention import no_mask
from trainer.modeling.context_parallel import of_slices
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.forward_choice import choose_forward_mode
from trainer.modeling.forward_ways import OWN, slice_obstacle, tree_obstacle
from trainer.process.parallel import Parallel
from trainer.process.private_apis import layer_class_names
from trainer.process.sharding import shard_model
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

SHORT, LONG = 5, 400  # tokens; the long one is beyond what is measured
TWO, FOUR = Layout(1, cp=2), Layout(1, cp=4)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def some_layers(window: int) -> PreTrainedModel:
    """Qwen2: a layer with full attention, and one with a window."""
    settings = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **settings, attn_implementation="eager"))


def every_layer(window: int) -> PreTrainedModel:
    """Mistral, whose configuration has no types of layers."""
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window, attn_implementation="eager"))


def other_positions(window: int) -> PreTrainedModel:
    """Gemma 3: layers with a window have rotary frequencies of their own."""
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(
        **SIZES, sliding_window=window, layer_types=kinds, query_pre_attn_scalar=8, attn_implementation="eager"
    )
    return Gemma3ForCausalLM(config)


def made(kind: Callable[[int], PreTrainedModel], window: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return spread(kind(window).to(torch.float64))


def sharded(model: PreTrainedModel, parallel: Parallel) -> TreeLM:
    lm = TreeLM(model, parallel.context)
    shard_model(lm, layer_class_names(model), parallel)
    return lm


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (some_layers, TWO),
        pytest.param(every_layer, TWO, marks=pytest.mark.thorough),
        pytest.param(other_positions, TWO, marks=pytest.mark.thorough),
        pytest.param(some_layers, FOUR, marks=pytest.mark.thorough),
    ],
)
def test_processes_of_a_row_train_windows_as_one_process_does(
    kind: Callable[[int], PreTrainedModel], layout: Layout
) -> None:
    """Rows are longer than the window, which is shorter than a probe."""
    with comparison(model=made(kind, SHORT)) as compared:
        expected = compared.trained(Layout(1))
        assert relative_difference(compared.trained(layout), expected) < 1e-9


@pytest.mark.parametrize("kind", [some_layers, every_layer, other_positions])
def test_a_window_longer_than_what_is_measured_is_applied_in_longer_rows(
    kind: Callable[[int], PreTrainedModel],
) -> None:
    model = made(kind, LONG)
    assert tree_obstacle(model.config) == "sliding_window is 400, more tokens than are measured"
    assert slice_obstacle(model.config) is None
    record = RecordBuilder("long")
    record.reply([i * i % VOCABULARY for i in range(901)], record.context([1, 2]))
    (row,) = pack([merge([record.build()], merging=Merging.LINEAR)], 10_000, one_sequence_per_row=True)
    own = TreeLM(model)
    own.way = OWN
    with torch.no_grad():
        expected_E, _ = row_logprobs(own, row, attn=no_mask)

    def work(parallel: Parallel) -> None:
        lm = sharded(made(kind, LONG), parallel)
        result = choose_forward_mode(
            lm, "auto", parallel.device, obstacle=tree_obstacle(model.config), peers=parallel.everyone
        )
        assert not result.way.trees
        assert lm.sharing is not None
        with torch.no_grad():
            found_E, _ = row_logprobs(lm, row, attn=lm.mask(parallel.device))
        torch.testing.assert_close(found_E, expected_E, rtol=0, atol=1e-5)  # norms compute in float32

    run(TWO, work)


def test_a_window_that_a_layer_does_not_pass_to_its_attention_is_refused() -> None:
    (row,) = pack([merge(random_group(3))], 1000)

    def work(parallel: Parallel) -> None:
        model = made(some_layers, LONG)
        model.set_attn_implementation(of_slices("sdpa", parallel.context))
        model.model.layers[1].self_attn.sliding_window = None
        with pytest.raises(ValueError, match="passes sliding_window None to its attention, its configuration has 400"):
            row_logprobs(TreeLM(model, parallel.context), row)

    run(TWO, work)


def test_no_window_is_applied_to_a_tree() -> None:
    """It would count tokens of other branches."""
    (row,) = pack([merge(random_group(3))], 1000)

    def work(parallel: Parallel) -> None:
        model = made(every_layer, SHORT)
        model.set_attn_implementation(of_slices("sdpa", parallel.context))
        with pytest.raises(ValueError, match="has a window of 5 tokens; expected rows of one sequence, and sdpa"):
            row_logprobs(TreeLM(model, parallel.context), row)

    run(TWO, work)


def test_a_layer_that_needs_the_slice_before_is_refused_by_measuring() -> None:
    """A model whose attention looks right and whose layers add the token before: no configuration says so."""

    def work(parallel: Parallel) -> None:
        model = made(some_layers, SHORT)
        model.model.layers[0].mlp.register_forward_hook(lambda _, args, out: out + args[0].roll(1, 1))
        lm = sharded(model, parallel)
        with pytest.raises(
            ConfigError, match=r"no way .* sequence by sequence, attention over_slices_by_sdpa.*: log-probs .* nats off"
        ):
            choose_forward_mode(lm, "auto", parallel.device, peers=parallel.everyone)

    run(TWO, work)
