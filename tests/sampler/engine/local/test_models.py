"""Which models are served, by which forward, and what is refused at start; the sampling arithmetic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from sampler.engine.api.generation import SamplingParams
from sampler.engine.loading.checkpoint import ExpectedCheckpoint
from sampler.engine.local.batching import Batching
from sampler.engine.local.lean import LeanForward
from sampler.engine.local.runner import EngineSize, UnsupportedModelError, load
from sampler.engine.local.running import RunningSequence
from sampler.engine.local.sampling import truncated
from sampler.engine.local.stock import StockForward
from sampler.engine.local.weights import by_model_names, copy_into, read_checkpoint
from tests.sampler.engine.local.harness import ROOT, ROUNDING, START_S

SMALL = EngineSize(max_running_requests=2, num_threads=1)
SHAPE = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2,
}  # fmt: skip
SCALED = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}


def save(folder: Path, model_class: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = model_class(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # biases start at zero and norms at one: make them matter
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    model.save_pretrained(folder)
    return model.train(False)


def generated(folder: Path) -> tuple[RunningSequence, Any]:
    """Two turns' worth of tokens through prefill, reuse and decode."""
    loaded = load(folder, SMALL)
    with torch.inference_mode():
        batching = Batching(loaded.forward, loaded.kv, lambda ids, skip: "", "v0")
        for prompt in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8, 9]):
            g = RunningSequence("g", prompt, SamplingParams(), 20, frozenset())
            batching.waiting.append(g)
            while batching.can_step:
                batching.step()
    return g, loaded.forward


@pytest.mark.parametrize(
    ("model_class", "config", "forward"),
    [
        (LlamaForCausalLM, LlamaConfig(**SHAPE), LeanForward),
        (LlamaForCausalLM, LlamaConfig(**SHAPE, attention_bias=True, rope_parameters=SCALED), LeanForward),
        (Qwen2ForCausalLM, Qwen2Config(**SHAPE, tie_word_embeddings=True), LeanForward),
        (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=None), LeanForward),
        (Qwen3MoeForCausalLM, Qwen3MoeConfig(**SHAPE, **EXPERTS), StockForward),
        (LlamaForCausalLM, LlamaConfig(**SHAPE, hidden_act="gelu"), StockForward),
    ],
    ids=["llama", "llama-bias-scaled-rope", "qwen2", "mistral", "qwen3-moe", "llama-gelu"],
)
def test_models_of_many_shapes_generate_with_exact_log_probs(
    tmp_path: Path, model_class: type[PreTrainedModel], config: Any, forward: type
) -> None:
    model = save(tmp_path, model_class, config)
    g, used = generated(tmp_path)
    assert type(used) is forward
    assert g.cached_tokens == 4
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([g.prompt + g.output])).logits[0, len(g.prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(g.output)[:, None])[:, 0]
    assert float((torch.tensor(g.logprobs) - expected).abs().max()) <= ROUNDING


@pytest.mark.parametrize(
    ("model_class", "config", "words"),
    [
        (Gemma2ForCausalLM, Gemma2Config(**SHAPE, head_dim=8, sliding_window=8), "window of 8 tokens"),
        (Gemma2ForCausalLM, Gemma2Config(**SHAPE, head_dim=8, attn_logit_softcapping=0.5), "gemma2"),
        (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=16), "--context-length 16"),
    ],
    ids=["sliding", "softcap", "mistral-sliding"],
)
def test_a_model_that_would_be_served_wrongly_is_refused_at_start(
    tmp_path: Path, model_class: type[PreTrainedModel], config: Any, words: str
) -> None:
    save(tmp_path, model_class, config)
    with pytest.raises(UnsupportedModelError, match=words):
        load(tmp_path, SMALL)


def test_an_architecture_without_separate_projections_is_served_or_refused_but_never_wrong(tmp_path: Path) -> None:
    shape = {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
    save(tmp_path, GPTNeoXForCausalLM, GPTNeoXConfig(**shape))
    assert type(load(tmp_path, SMALL).forward) is StockForward


def test_an_update_reaches_models_whose_names_differ_on_disk(tmp_path: Path) -> None:
    """Fused experts: transformers renames the tensors of the file."""
    config = Qwen3MoeConfig(**SHAPE, **EXPERTS)
    save(tmp_path / "old", Qwen3MoeForCausalLM, config)
    loaded = load(tmp_path / "old", SMALL)
    torch.manual_seed(1)
    new = Qwen3MoeForCausalLM(config)
    new.save_pretrained(tmp_path / "new")
    tensors = read_checkpoint(tmp_path / "new", ExpectedCheckpoint.of(tmp_path / "old"))
    copy_into(loaded.model, by_model_names(loaded.model, tmp_path / "new", tensors))
    for name, tensor in new.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 2}, [0, 0.4, 0, 0.3]),
        ({"top_p": 0.65}, [0, 0.4, 0, 0.3]),
        ({"top_p": 0.75}, [0, 0.4, 0.2, 0.3]),
        ({"top_p": 1e-6}, [0, 0.4, 0, 0]),
        ({"min_p": 0.6}, [0, 0.4, 0, 0.3]),
        ({"top_k": 2, "top_p": 0.65}, [0, 0.4, 0, 0.3]),  # 0.4 is 0.57 of what top-k leaves
        ({"min_p": 0.4, "top_p": 0.75}, [0, 0.4, 0, 0.3]),  # 0.7 is 0.78 of what min-p leaves
    ],
)
def test_truncation_keeps_the_likeliest_tokens_and_renormalizes(asked: dict[str, Any], kept: list[float]) -> None:
    log_probs = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    left = truncated(log_probs, **({"top_k": 4, "top_p": 1.0, "min_p": 0.0} | asked)).exp()
    assert left.tolist() == pytest.approx([value / sum(kept) for value in kept])


def test_a_folder_without_a_model_is_refused_with_a_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sampler.engine.local", "--model-path", str(tmp_path), "--port", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_S, cwd=ROOT, check=False)
    assert ended.returncode == 2
    assert "no config.json there" in ended.stderr
