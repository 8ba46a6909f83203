"""How a model is computed is what its own forward gives, also for models that nothing here knows by name."""

from pathlib import Path

import pytest
import torch

from shared.errors import ConfigError
from tests.trainer.builders import logprobs_one_by_one, random_group
from tests.trainer.launched import OPTIMIZER
from tests.trainer.model_table import CPU, line
from tests.trainer.tiny_models import tiny
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.forward import TreeLM
from trainer.modeling.forward_choice import choose_forward_mode
from trainer.modeling.forward_ways import Head
from trainer.process.parallel import Parallel
from trainer.step.opening import open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

TREES = {  # (attention, head) of models that trees go through
    "llama": ("by_node", Head.CHUNKED),
    "qwen3, attention dropout": ("by_node", Head.CHUNKED),
    "phimoe, router noise": ("by_node", Head.CHUNKED),
    "granite, logits_scaling": ("by_node", Head.KEPT),
    "deepseek_v3": ("sdpa", Head.CHUNKED),  # its values are narrower than its keys
    "falcon": ("eager", Head.CHUNKED),
    "gptj": ("eager", Head.KEPT),  # its head has a bias
    "gpt_neox_japanese": ("eager", Head.CHUNKED),
}
SEQUENCES = {  # … and of those that none goes through
    "llama, rope dynamic": ("by_node", Head.CHUNKED),
    "phi3, rope longrope": ("by_node", Head.CHUNKED),
    "mistral, window 16": ("sdpa", Head.CHUNKED),
    "mistral, window 400": ("sdpa", Head.CHUNKED),
    "falcon_h1": ("by_node", Head.KEPT),  # it multiplies its logits
    "gpt_oss": ("eager", Head.CHUNKED),  # sinks
    "gemma2": ("eager", Head.KEPT),  # caps
    "llama4_text": ("by_node", Head.KEPT),
    "bloom": ("eager", Head.CHUNKED),
    "mpt": ("eager", Head.CHUNKED),
    "bart": ("by_node", Head.CHUNKED),  # positions of its own
    "xlstm": ("by_node", Head.WHOLE),
}


@pytest.mark.parametrize("name", [*TREES, *SEQUENCES])
def test_the_way_that_is_taken_gives_what_the_model_gives(name: str) -> None:
    """On other data than it was measured on, in log-probs and gradient."""
    found = line(name, tiny(name))
    assert found.way is not None, found.measured
    assert found.right, found
    assert found.way.trees is (name in TREES), found
    assert (found.way.attention, found.way.head) == (TREES | SEQUENCES)[name], found


def test_what_a_model_does_to_its_logits_needs_no_name() -> None:
    model = tiny("llama")
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: 5.0 * torch.tanh(logits / 3.0))
    found = line("unknown", model)
    assert found.right, found
    assert found.way is not None
    assert found.way.head is Head.KEPT


def test_positions_that_a_model_counts_in_the_row_keep_trees_away() -> None:
    model = tiny("llama")
    rotary = model.model.rotary_emb
    plain = rotary.forward
    rotary.forward = lambda x, position_ids: plain(x, torch.arange(x.shape[1])[None])
    found = line("unknown", model)
    assert found.right, found
    assert found.way is not None
    assert not found.way.trees


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "deepseek_v3"])
def test_rounding_in_bfloat16_keeps_no_model_from_trees(name: str) -> None:
    lm = TreeLM(tiny(name).to(torch.bfloat16))
    assert choose_forward_mode(lm, "auto", CPU).way.trees


@pytest.mark.parametrize("name", ["falcon_h1", "phi3, rope longrope"])
def test_rounding_in_bfloat16_hides_no_wrong_way(name: str) -> None:
    assert not choose_forward_mode(TreeLM(tiny(name).to(torch.bfloat16)), "auto", CPU).way.trees


def test_an_attention_that_is_named_and_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match=r"gemma2: no way .* attention sdpa.*does not support an attention implementation"
    ):
        choose_forward_mode(TreeLM(tiny("gemma2")), "sdpa", CPU)


def test_a_way_that_is_wrong_is_refused_with_the_figure() -> None:
    lm = TreeLM(tiny("llama"))
    with torch.no_grad():
        lm.causal_lm.model.layers[0].self_attn.register_forward_hook(
            lambda _, __, out: (out[0] * torch.rand(1), out[1])
        )
    with pytest.raises(ConfigError, match=r"agrees with its own forward within .* nats off, gradient .* %"):
        choose_forward_mode(lm, "auto", CPU)


@pytest.mark.parametrize("name", ["falcon_h1", "deepseek_v3"])
def test_a_sharded_model_learns_by_the_way_that_was_found(name: str, alone: Parallel, tmp_path: Path) -> None:
    """Also after a way that raised in the middle of a sharded forward."""
    model = tiny(name)
    model.save_pretrained(tmp_path)
    learner = open_learner(tmp_path, LossConfig(loss=LossName.GRPO), OPTIMIZER, alone)
    tree = merge(random_group(3), merging=Merging.LINEAR if learner.linear else Merging.TREE)
    rows = pack([tree], 40, one_sequence_per_row=learner.linear)
    denominators = Denominators.count(torch.from_numpy(tree.trained_tokens_T))
    found = [learner.step(rows, denominators).metrics["loss/logprob_mean_nats"] for _ in range(2)]
    with torch.no_grad():
        expected = [float(token.new) for tokens in logprobs_one_by_one(model, random_group(3)) for token in tokens]
    assert found[0] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert found[1] != found[0], "the first step changed nothing"


def test_measuring_leaves_no_gradient_and_no_random_number_behind(alone: Parallel, tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    before = torch.get_rng_state()
    learner = open_learner(tmp_path, LossConfig(), OPTIMIZER, alone)
    assert all(parameter.grad is None for parameter in learner.lm.parameters())
    assert torch.equal(torch.get_rng_state(), before)
