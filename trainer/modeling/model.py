"""Load what is trained: a causal language model and its tokenizer, from a local Hugging Face directory."""

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from shared.errors import ConfigError
from trainer.modeling.trainable import EVERYTHING, Trainable, choose_trained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def load_config(directory: Path) -> PretrainedConfig:
    """Raises ConfigError for a directory without a model."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory}: no config.json; expected a local Hugging Face model directory")
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    assert isinstance(config, PretrainedConfig)
    return config


def load_model(
    directory: Path,
    *,
    dtype: str = "float32",
    attn_implementation: str = "sdpa",
    trainable: Trainable = EVERYTHING,
    dropout: bool = False,
) -> PreTrainedModel:
    """The model with its adapters. `dtype` is that of parameters and optimizer: float32 unless memory forbids.

    `dropout`: whether it is in training mode, in which a model drops activations or layers and adds noise to its routers: what
    the engine that sampled does not do.

    Raises ConfigError for a directory without a model, an unknown dtype, and as `choose_trained` does.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    config = load_config(directory)
    disable_progress_bar()  # one bar per rank and load, among the lines of the log
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        config=config,
        dtype=DTYPES[dtype],
        attn_implementation="eager" if not has_attention(config) else attn_implementation,
        experts_implementation=experts_implementation_for(dtype),
        local_files_only=True,
    )
    assert isinstance(model, PreTrainedModel)
    choose_trained(model, trainable)
    model.config.use_cache = False
    model.train(dropout)
    return model


def has_attention(config: PretrainedConfig) -> bool:
    """False for state-space layers alone (Mamba): transformers takes no attn_implementation for them."""
    return bool(getattr(config, "num_attention_heads", None))


def experts_implementation_for(dtype: str) -> str | None:
    """What computes a mixture of experts; None is transformers' choice, whose kernel takes no float64."""
    return "batched_mm" if dtype == "float64" else None


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer with its chat template. Raises ConfigError when either is missing."""
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError(f"{directory}: no tokenizer.json; expected a fast tokenizer in the model's directory")
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if not tokenizer.chat_template:
        raise ConfigError(f"{directory}: the tokenizer has no chat template; expected chat_template.jinja")
    return tokenizer


def layer_classes(model: PreTrainedModel) -> tuple[str, ...]:
    """Class names of the transformer layers: the units of sharding."""
    return tuple(sorted(model._no_split_modules or ()))
