"""The class of transformers that loads a model: of text, or with a vision tower. Needs transformers, which the samplers lack."""

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shared.errors import ConfigError
from shared.images.families.known import FAMILIES


def auto_class(config: PretrainedConfig, directory: Path) -> Any:
    """Raises ConfigError for a vision-language model of another family."""
    if config.model_type in FAMILIES:
        return AutoModelForImageTextToText
    if getattr(config, "vision_config", None) and config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"{directory}: model_type is {config.model_type}, a vision-language model of an unknown family; expected one of "
            f"{', '.join(FAMILIES)}, or a model of text"
        )
    return AutoModelForCausalLM
