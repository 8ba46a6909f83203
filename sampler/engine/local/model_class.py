"""The class of transformers that loads a model: with its vision tower where images of its family are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from shared.files.json_file import read_json_file


def reads_images(folder: Path) -> bool:
    """Whether the model is of a family whose images are known (`shared.images.families`)."""
    config = read_json_file(folder / "config.json", "the model's config", keys_once=False)
    if not isinstance(config, dict) or not isinstance(config.get("vision_config"), dict):
        return False
    from shared.images.families.known import FAMILIES  # for vision models alone

    return config.get("model_type") in FAMILIES


def model_class(folder: Path) -> Any:
    return AutoModelForImageTextToText if reads_images(folder) else AutoModelForCausalLM
