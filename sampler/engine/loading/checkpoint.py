"""Whether a folder holds the weights of the served model: its config describes the same architecture, and its tensors are exactly
those that the engine started with, complete and of the same shapes. Reads headers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from shared.errors import DataError
from shared.weights.layout import CheckpointLayout, check_layout, read_layout

# config fields that change what the same weights mean; the others (dtype, use_cache, versions, …) do not
MEANINGFUL = (
    "model_type", "hidden_act", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "rope_parameters", "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpectedCheckpoint:
    """The required properties of every update, read once from the engine's initial folder."""

    layout: CheckpointLayout
    config: dict[str, Any]

    @classmethod
    def of(cls, model_path: Path) -> ExpectedCheckpoint:
        """Raises DataError."""
        return cls(read_layout(model_path), _config(model_path) or {})

    def check(self, model_path: Path) -> None:
        """Raises DataError with the found and expected values."""
        _verify_config(model_path, self)
        check_layout(model_path, self.layout)


def _config(model_path: Path) -> dict[str, Any] | None:
    """As transformers reads it, so that older and newer spellings of a field compare equal."""
    if not (model_path / "config.json").is_file():
        return None
    try:
        config: dict[str, Any] = AutoConfig.from_pretrained(model_path, local_files_only=True).to_dict()
    except (ValueError, OSError, KeyError) as error:
        raise DataError(f"{model_path / 'config.json'} cannot be read: {error}") from error
    return config


def _verify_config(model_path: Path, expected: ExpectedCheckpoint) -> None:
    """A folder with only tensors is accepted; a config must give them the same meaning."""
    config = _config(model_path)
    if config is None:
        return
    for key in MEANINGFUL:
        if config.get(key) != expected.config.get(key):
            raise DataError(
                f"{model_path / 'config.json'}: {key} is {config.get(key)!r}; this engine serves {key} "
                f"{expected.config.get(key)!r}. Another architecture needs a separate engine."
            )
