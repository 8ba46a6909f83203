"""The class of transformers that loads a model: with its vision tower where images of its family are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

from shared.files.json_file import read_json_file
from shared.images.families.known import FAMILIES
from shared.images.families.model_class import auto_class


def reads_images(folder: Path) -> bool:
    """Whether the model is of a family whose images are known (`shared.images.families`)."""
    config = read_json_file(folder / "config.json", "the model's config", keys_once=False)
    if not isinstance(config, dict) or not isinstance(config.get("vision_config"), dict):
        return False
    return config.get("model_type") in FAMILIES


def model_class(folder: Path) -> Any:
    """Raises ConfigError for a vision-language model of another family, and what transformers raises."""
    return auto_class(AutoConfig.from_pretrained(folder, local_files_only=True), folder)
