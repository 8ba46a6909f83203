"""Load what is trained: a causal language model and its tokenizer, from a local Hugging Face directory."""

import logging
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
from trainer.trainable import EVERYTHING, Trainable, choose_trained

log = logging.getLogger(__name__)

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
) -> PreTrainedModel:
    """The model in training mode, with its adapters. `dtype` is that of parameters and optimizer: float32 unless memory forbids.

    Raises ConfigError for a directory without a model, an unknown dtype, attention that would ignore a tree mask, a loss of
    the model's own that is not computed here, and as `choose_trained` does.
    """
    if attn_implementation == "eager":
        # measured: logits off by 0.44 and no error, since eager adds the boolean mask instead of applying it
        raise ConfigError("attn_implementation is 'eager'; expected 'sdpa': eager misreads boolean masks")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    config = load_config(directory)
    disable_progress_bar()  # one bar per rank and load, among the lines of the log
    _check_no_router_loss(config, directory)
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        config=config,
        dtype=DTYPES[dtype],
        attn_implementation="eager" if not has_attention(config) else attn_implementation,
        local_files_only=True,
    )
    assert isinstance(model, PreTrainedModel)
    choose_trained(model, trainable)
    model.config.use_cache = False
    model.train()
    return model


def has_attention(config: PretrainedConfig) -> bool:
    """False for state-space layers alone (Mamba): transformers takes no attn_implementation for them."""
    return bool(getattr(config, "num_attention_heads", None))


def _check_no_router_loss(config: PretrainedConfig, directory: Path) -> None:
    """The load-balancing loss of experts multiplies two means over all tokens of an update, each as often as records have it; but
    a tree has a shared token once, and a row has a part of the update.
    """
    if getattr(config, "output_router_logits", False):
        raise ConfigError(
            f"{directory}/config.json: output_router_logits is true, which asks for a load-balancing loss of the experts; the "
            "trainer has none: set it to false"
        )
    if coefficient := getattr(config, "router_aux_loss_coef", 0.0):
        log.warning("%s: router_aux_loss_coef is %g: no load-balancing loss is added", directory, coefficient)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer with its chat template. Raises ConfigError when either is missing."""
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError(f"{directory}: no tokenizer.json; expected a fast tokenizer beside the model")
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if not tokenizer.chat_template:
        raise ConfigError(f"{directory}: the tokenizer has no chat template; expected chat_template.jinja")
    return tokenizer


def layer_classes(model: PreTrainedModel) -> tuple[str, ...]:
    """Class names of the transformer layers: the units of sharding."""
    return tuple(sorted(model._no_split_modules or ()))
