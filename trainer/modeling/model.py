"""Load the trained model, a causal or vision-language one, and its tokenizer, from a local Hugging Face directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from shared.errors import ConfigError
from shared.files.text_file import read_text_file
from shared.images.families.model_class import auto_class
from shared.weights.whole_model import check_loaded, check_tied
from trainer.modeling.trainable import choose_trained
from trainer.settings.trained_parts import EVERYTHING, Trainable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def load_config(directory: Path) -> PretrainedConfig:
    """Read the model's config. Raises ConfigError for a directory without a model."""
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{directory}: no config.json; expected a local Hugging Face model directory")
    with reading(directory):
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
    """Load the model with its adapters. `dtype`: of parameters and optimizer; float32 if memory allows.

    `dropout`: use training mode, in which a model drops activations or layers and adds router noise, unlike the engine that
    sampled.

    Raises ConfigError for a directory without a whole model (a tensor that is in none of its files, say), an unknown dtype, an
    attention that is not installed, and like `choose_trained`.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    config = load_config(directory)
    disable_progress_bar()  # would write one bar per rank into the log
    with reading(directory):
        loaded: Any = auto_class(config, directory).from_pretrained(
            directory,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation="eager" if not has_attention(config) else attn_implementation,
            experts_implementation=experts_implementation_for(dtype),
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with the tensor's name
        )
    model, loading = loaded  # so with `output_loading_info`
    assert isinstance(model, PreTrainedModel)
    check_loaded(directory, loading)
    check_tied(directory, sorted(directory.glob("*.safetensors")))
    choose_trained(model, trainable)
    model.config.use_cache = False
    model.train(dropout)
    return model


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """transformers' errors about the files of a model, and about what it needs, as ConfigError."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as exc:
        text = " ".join(str(exc).split())
        raise ConfigError(f"{directory}: the model cannot be loaded: {type(exc).__name__}: {text}") from exc


def has_attention(config: PretrainedConfig) -> bool:
    """False for pure state-space models (Mamba), for which transformers accepts no attn_implementation."""
    return bool(getattr(config.get_text_config(), "num_attention_heads", None))


def experts_implementation_for(dtype: str) -> str | None:
    """The implementation for mixtures of experts; None: transformers' default, whose kernel lacks float64."""
    return "batched_mm" if dtype == "float64" else None


def load_tokenizer(directory: Path, template: Path | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer with its chat template, or that of the file `template`. Raises ConfigError if either is missing."""
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError(f"{directory}: no tokenizer.json; expected a fast tokenizer in the model's directory")
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if template is not None:
        tokenizer.chat_template = read_text_file(template, "a chat template")
    if not tokenizer.chat_template:
        raise ConfigError(f"{directory}: the tokenizer has no chat template; expected chat_template.jinja")
    return tokenizer
