"""Outside of attention and MLP the processes of a layer have a slice of the tokens each, and train what one process trains.

Other layouts with `tp_size` are in test_layouts.py, test_pipeline.py, test_expert_parallel.py and test_trainable.py.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    ApertusConfig,
    ApertusForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from tests.trainer.builders import VOCABULARY, relative_difference, spread, tiny_experts_model, tiny_model
from tests.trainer.launched import OPTIMIZER, full_parameters, take_steps
from tests.trainer.layouts import MAX_TOKENS, Layout, comparison, run
from trainer.losses import LossConfig
from trainer.modeling.expert_parallel import spread_experts
from trainer.modeling.sequence_parallel import routers_line
from trainer.modeling.tensor_parallel import cut_layers
from trainer.process.parallel import Parallel
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step.opening import LearnerOptions, open_learner

ONE, TWO, FOUR = Layout(1), Layout(1, tp=2), Layout(1, tp=4)
EXPERTS_OF_TWO, EXPERTS_OF_FOUR = Layout(1, tp=2, ep=2), Layout(1, tp=4, ep=4)
CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}


def with_biases() -> PreTrainedModel:
    """Llama; a bias after a sum over processes is added once."""
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))


def norms_on_both_sides() -> PreTrainedModel:
    """Gemma 3."""
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, layer_types=kinds, query_pre_attn_scalar=8, sliding_window=64))


def shared_expert() -> PreTrainedModel:
    """Qwen2-MoE: experts, and a matrix cut by columns in a block that is not summed."""
    of_experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    more = {"shared_expert_intermediate_size": 24, "experts_implementation": "batched_mm"}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**SIZES, **of_experts, **more))


def shared_experts_of_parts() -> PreTrainedModel:
    """GLM-4-MoE: a dense layer, and experts next to one for all tokens, which is cut like a dense layer."""
    of_experts = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    more = {"first_k_dense_replace": 1, "experts_implementation": "batched_mm"}
    return Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES, **of_experts, **more))


def trained_activation() -> PreTrainedModel:
    """Apertus, whose activation has scalars that are trained."""
    return ApertusForCausalLM(ApertusConfig(**SIZES))


def without_key_heads() -> PreTrainedModel:
    """GPT-NeoX, whose configuration has no number of key heads, and whose queries, keys and values are one matrix."""
    return GPTNeoXForCausalLM(GPTNeoXConfig(**{name: size for name, size in SIZES.items() if "key" not in name}))


def made(kind: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    model = spread(kind().to(torch.float64)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(torch.linspace(-1, 1, len(parameter), dtype=parameter.dtype))
    return model


def cut(model: PreTrainedModel, parallel: Parallel) -> PreTrainedModel:
    spread_experts(model, parallel)
    cut_layers(model, parallel.mesh["tp"], CPU, with_experts=parallel.experts is None)
    return model


def results(model: PreTrainedModel, tokens: int) -> dict[str, Tensor]:
    """Logits and whole gradients of a row."""
    ids = torch.randint(3, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    logits.log_softmax(-1).gather(-1, ids[..., None]).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    whole = {name: of.full_tensor() if isinstance(of, DTensor) else of for name, of in gradients.items()}
    return {"logits": logits.detach(), **{name: gradient.clone() for name, gradient in whole.items()}}


def assert_equal_rows(model: PreTrainedModel, whole: PreTrainedModel, lengths: Sequence[int]) -> None:
    """Logits and gradients of rows of these lengths, to the float32 of norms in models that have no others."""
    for tokens in lengths:
        difference = relative_difference(results(model, tokens), results(whole, tokens))
        assert difference < 1e-5, (tokens, difference)


@pytest.mark.parametrize(
    "kind",
    [
        *(with_biases, norms_on_both_sides, shared_expert, trained_activation, without_key_heads),
        *(tiny_experts_model, tiny_model),
    ],
    ids=lambda kind: kind.__name__,
)
def test_rows_of_any_length_have_the_gradient_of_one_process(kind: Callable[[], PreTrainedModel]) -> None:
    """Also of one token, fewer than there are processes. To the float32 of norms, where a model has no others."""

    def work(parallel: Parallel) -> None:
        whole, model = made(kind), made(kind)
        cut_layers(model, parallel.mesh["tp"], CPU)
        assert_equal_rows(model, whole, (1, 7, 64))

    run(TWO, work)


def test_four_processes_share_a_row_that_they_do_not_divide() -> None:
    def work(parallel: Parallel) -> None:
        whole, model = made(with_biases), made(with_biases)
        cut_layers(model, parallel.mesh["tp"], CPU)
        assert_equal_rows(model, whole, (3, 10))

    run(FOUR, work)


@pytest.mark.parametrize(
    "kind", [tiny_experts_model, shared_expert, shared_experts_of_parts], ids=lambda kind: kind.__name__
)
def test_slices_whose_experts_are_on_other_processes_have_the_gradient_of_one(
    kind: Callable[[], PreTrainedModel],
) -> None:
    """Of one token a process has none."""

    def work(parallel: Parallel) -> None:
        whole, model = made(kind), cut(made(kind), parallel)
        assert routers_line(model)
        assert_equal_rows(model, whole, (1, 7, 64))

    run(EXPERTS_OF_TWO, work)


def test_four_processes_spread_experts_of_a_row_that_they_do_not_divide() -> None:
    def work(parallel: Parallel) -> None:
        whole, model = made(shared_experts_of_parts), cut(made(shared_experts_of_parts), parallel)
        held = model.get_parameter("model.layers.1.mlp.shared_experts.down_proj.weight")
        assert isinstance(held, DTensor)
        assert held.to_local().shape == (32, 6), "a shared expert is cut inside a slice"
        assert_equal_rows(model, whole, (3, 10))

    run(EXPERTS_OF_FOUR, work)


def test_each_process_routes_the_tokens_of_its_slice_alone() -> None:
    def work(parallel: Parallel) -> None:
        model = cut(tiny_experts_model(), parallel)
        lengths = []
        layer: Any = model.model.layers[1]
        for module in (layer.post_attention_layernorm, layer.mlp.gate, layer.mlp.experts, layer.self_attn.q_proj):
            module.register_forward_hook(lambda _, args, out: lengths.append(args[0].shape[-2]))
        results(model, 9)
        own = (5, 4)[parallel.rank]
        assert sorted(lengths) == sorted([5, own, own, 9])

    run(EXPERTS_OF_TWO, work)


@pytest.mark.parametrize(
    "kind",
    [norms_on_both_sides, pytest.param(with_biases, marks=pytest.mark.thorough)],
    ids=lambda kind: kind.__name__,
)
def test_steps_are_those_of_one_process_to_and_from_its_checkpoints(kind: Callable[[], PreTrainedModel]) -> None:
    with comparison(model=made(kind)) as compared:
        expected = compared.trained(ONE)
        assert relative_difference(compared.trained(TWO), expected) < 1e-9
        for name in ("learner/grad_norm", "loss/loss"):
            assert compared.metrics[TWO][name] == pytest.approx(compared.metrics[ONE][name], rel=1e-9), name
        for saved_by, continued_by in ((TWO, ONE), (ONE, TWO)):
            assert relative_difference(compared.continued(saved_by, continued_by), expected) < 1e-9


def test_norms_have_slices_and_blocks_have_rows() -> None:
    def work(parallel: Parallel) -> None:
        model = tiny_model()
        cut_layers(model, parallel.mesh["tp"], CPU)
        lengths = []
        layer: Any = model.model.layers[1]
        for module in (layer.input_layernorm, layer.self_attn.q_proj, layer.mlp.down_proj, model.model.norm):
            module.register_forward_hook(lambda _, args, out: lengths.append(args[0].shape[1]))
        results(model, 9)
        assert lengths == [5, 9, 9, 5]

    run(TWO, work)


def saved_numbers(model: PreTrainedModel, tokens: int) -> int:
    """That a forward keeps for its backward, parameters aside."""
    kept: dict[int, int] = {}
    parameters = {(p.to_local() if isinstance(p, DTensor) else p).data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    hidden = torch.randn(1, tokens, 32, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.base_model(inputs_embeds=hidden, use_cache=False)
    del output
    return sum(kept.values())


def test_a_process_keeps_half_of_what_one_keeps() -> None:
    """Of the row a backward needs, each process has its slice: nothing in a layer is kept twice."""

    def work(parallel: Parallel) -> None:
        model = tiny_model()
        alone = saved_numbers(model, 256)
        cut_layers(model, parallel.mesh["tp"], CPU)
        assert saved_numbers(model, 256) < 0.515 * alone

    run(TWO, work)


@pytest.mark.parametrize(
    "trainable", [EVERYTHING, Trainable(lora_rank=2, lora_target_modules=["all-linear"])], ids=["full", "adapters"]
)
def test_layers_that_are_computed_again_train_the_same(trainable: Trainable, tmp_path: Path) -> None:
    """Rows of several lengths, whose layers are computed again during the backward."""
    tiny_model(tied=False).save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        trained = []
        for checkpointed in (False, True):
            options = LearnerOptions(
                trainable=trainable,
                dtype="float64",
                memory=MemorySettings(activation_checkpointing=checkpointed),
            )
            learner = open_learner(tmp_path / "model", LossConfig(), OPTIMIZER, parallel, options)
            take_steps(learner, 2, MAX_TOKENS, parallel)
            trained.append(full_parameters(learner))
        assert relative_difference(trained[1], trained[0]) < 1e-9

    run(TWO, work)


def dropping(model: PreTrainedModel) -> None:
    """The processes would drop other hidden states of a slice."""
    model.train().model.layers[0].mlp.register_module("dropout", torch.nn.Dropout(0.1))


def not_a_chain(model: PreTrainedModel) -> None:
    """Between the layers it may use whole rows."""
    model.config.base_model_pp_plan = None


def with_another_input(model: PreTrainedModel) -> None:
    """A block of experts that gets more than hidden states may compute more than token by token."""
    block: Any = model.model.layers[1].mlp
    own = block.forward
    block.forward = lambda hidden_states, input_ids=None: own(hidden_states)


@pytest.mark.parametrize("changed", [dropping, not_a_chain, with_another_input], ids=lambda changed: changed.__name__)
def test_experts_on_other_processes_get_whole_rows_where_a_model_needs_them(
    changed: Callable[[PreTrainedModel], None],
) -> None:
    """Each process then sends its part of the tokens."""

    def work(parallel: Parallel) -> None:
        whole, model = made(tiny_experts_model), made(tiny_experts_model)
        changed(model)
        cut(model, parallel)
        assert not routers_line(model)
        assert_equal_rows(model, whole, (1, 7))

    run(EXPERTS_OF_TWO, work)


@pytest.mark.parametrize("changed", [dropping, not_a_chain], ids=lambda changed: changed.__name__)
def test_models_that_need_whole_rows_get_them(changed: Callable[[PreTrainedModel], None]) -> None:
    def work(parallel: Parallel) -> None:
        whole, model = made(with_biases), made(with_biases)
        changed(model)
        cut_layers(model, parallel.mesh["tp"], CPU)
        lengths = []
        model.model.layers[0].input_layernorm.register_forward_hook(lambda _, args, out: lengths.append(out.shape[1]))
        assert relative_difference(results(model, 6), results(whole, 6)) < 1e-5
        assert lengths == [6]

    run(TWO, work)
