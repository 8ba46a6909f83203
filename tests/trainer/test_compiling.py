"""Compiled layers compute what layers compute, with every other setting, and are not compiled again for every row."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from shared.errors import ConfigError
from tests.trainer.builders import VOCABULARY, random_group, relative_difference, tiny_model, whole
from tests.trainer.launched import OPTIMIZER, accumulated, full_parameters, take_steps
from tests.trainer.layouts import Layout, run
from trainer.losses import Denominators, LossConfig
from trainer.modeling import compiling
from trainer.modeling.float64_norms import exact_norms
from trainer.process.parallel import Parallel
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

TOLERANCE = 1e-9
STEPS = 8


@pytest.fixture(autouse=True)
def _compiled_from_scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # the compiler sets it, and leaves it
    # pytest collects what this logger, meant for a file, says of every symbol, with its stack: minutes
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of compiling but the C++ compiler: what is traced runs as it is."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")


def learner_of(directory: Path, parallel: Parallel, **options: Any) -> Learner:
    return open_learner(directory, LossConfig(), OPTIMIZER, parallel, LearnerOptions(dtype="float64", **options))


def rows_of(number: int) -> tuple[list[Row], Denominators]:
    """Other groups for each number, in rows of another budget."""
    tree = merge(random_group(2 * number) + random_group(2 * number + 1))
    return pack([tree], 12 + 3 * number), Denominators.count(torch.from_numpy(tree.trained_tokens_T))


def gradients_of(learner: Learner, rows: list[Row], denominators: Denominators) -> dict[str, Tensor]:
    for optimizer in learner.optimizers:
        optimizer.zero_grad()
    accumulated(learner, Minibatch(rows, denominators))
    found = {}
    for name, parameter in learner.causal_lm.named_parameters():
        if parameter.grad is not None:
            found[name] = whole(parameter.grad).clone()
    return found


def learners_of(directory: Path, parallel: Parallel, **options: Any) -> tuple[Learner, Learner]:
    """Without and with compiled layers."""
    plain, compiled = (learner_of(directory, parallel, compile_layers=on, **options) for on in (False, True))
    return plain, compiled


def difference_in_step(number: int, plain: Learner, compiled: Learner) -> float:
    """The largest of any gradient; both then make their update of it."""
    with exact_norms(plain.causal_lm), exact_norms(compiled.causal_lm):
        expected, found = (gradients_of(learner, *rows_of(number)) for learner in (plain, compiled))
    assert any(gradient.abs().max() > 1e-6 for gradient in expected.values())
    for learner in (plain, compiled):
        learner._update()
    return relative_difference(found, expected)


def graphs() -> int:
    """Pieces that were compiled until now, forward and backward of one counted once."""
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",  # what is traced runs as it is
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.thorough,
                pytest.mark.timeout(900),  # 82 s alone on two cores; the compiler's own time grows with the load
                pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
            ],
        ),
    ],
)
def test_steps_over_other_trees_and_lengths_have_the_gradients_of_layers_as_they_are_and_compile_nothing_anew(
    backend: str, model_directory: Path, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "BACKEND", backend)
    lengths = {row.num_tokens for number in range(STEPS) for row in rows_of(number)[0]}
    assert len(lengths) > 15
    checkpointed = MemorySettings(activation_checkpointing=True, logprob_chunk=5)  # the layers' code runs twice then
    learners = learners_of(model_directory, alone, memory=checkpointed)
    with inductor_config.patch(compile_threads=1):  # in this process: more would each import PyTorch first
        differences = [difference_in_step(0, *learners)]
        at_first = graphs()
        assert 1 <= at_first <= 8, (
            "for all layers: before and after attention, in two functions; for one length, and for any"
        )
        differences += [difference_in_step(number, *learners) for number in range(1, STEPS)]
    assert max(differences) < TOLERANCE
    assert graphs() == at_first


def test_only_the_length_of_a_row_is_a_symbol_in_compiled_code(
    model_directory: Path, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlexAttention on a GPU is not compiled for a number of heads that is one; SDPA stands for it, with the same tensors."""
    shapes: list[torch.Size] = []

    def noted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        calls = [node for node in graph.graph.nodes if "scaled_dot_product" in str(node.target)]
        shapes.extend(node.meta["example_value"].shape for node in calls)
        return graph.forward

    monkeypatch.setattr(compiling, "BACKEND", noted)
    learner = learner_of(model_directory, alone, compile_layers=True, attn_implementation="sdpa")
    gradients_of(learner, *rows_of(0))
    assert isinstance(shapes[-1][2], torch.SymInt)
    assert {(type(heads), type(size)) for _, heads, _, size in shapes} == {(int, int)}, shapes


@pytest.mark.usefixtures("no_code")
@pytest.mark.thorough
def test_two_processes_that_compile_make_the_update_of_one_that_does_not(model_directory: Path, tmp_path: Path) -> None:
    def work(parallel: Parallel) -> None:
        compiles = parallel.world_size == 2
        learner = learner_of(model_directory, parallel, compile_layers=compiles)
        take_steps(learner, 2, 30, parallel)
        assert (graphs() > 0) is compiles
        parameters = full_parameters(learner)
        if parallel.is_main:
            torch.save(parameters, tmp_path / f"{parallel.world_size}.pt")

    run(Layout(1), work)
    run(Layout(2), work)
    found, expected = (torch.load(tmp_path / f"{size}.pt") for size in (2, 1))
    assert relative_difference(found, expected) < TOLERANCE


def test_layers_that_are_cut_over_processes_are_not_compiled(model_directory: Path) -> None:
    def work(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match="with tp_size 1 and cp_size 2; expected both 1"):
            learner_of(model_directory, parallel, compile_layers=True)

    run(Layout(1, cp=2), work)


def test_layers_of_more_than_full_attention_are_not_compiled(alone: Parallel, tmp_path: Path) -> None:
    tiny_model(use_sliding_window=True, sliding_window=4, max_window_layers=0).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=r"more than full attention \(layers of type sliding_attention\); expected false"
    ):
        learner_of(tmp_path, alone, compile_layers=True)


def test_adapters_are_not_compiled(model_directory: Path, alone: Parallel) -> None:
    with pytest.raises(ConfigError, match="the model has adapters; expected lora_rank 0"):
        learner_of(model_directory, alone, compile_layers=True, trainable=Trainable(lora_rank=4))


def test_experts_are_not_compiled(alone: Parallel, tmp_path: Path) -> None:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=16, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2,
        num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the model has experts \(num_experts\); expected false"):
        learner_of(tmp_path, alone, compile_layers=True)


def test_a_missing_compiler_is_named_at_the_start(
    model_directory: Path, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++-that-is-not-there")
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler, and g\+\+-that-is-not-there is not there"):
        learner_of(model_directory, alone, compile_layers=True)
