"""The families that are known, and which of them a model is of."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.files.json_file import read_json_file
from shared.images.families.idefics3 import TILED, TiledFamily
from shared.images.families.model_files import ModelFiles
from shared.images.families.protocol import Family
from shared.images.families.qwen_vl import PATCH_SIZES, GridFamily

FAMILIES: Mapping[str, Callable[[ModelFiles], Family]] = {
    **dict.fromkeys(TILED, TiledFamily.read),
    **dict.fromkeys(PATCH_SIZES, GridFamily.read),
}
_VISION_KEYS = ("vision_config", "image_token_id", "image_token_index")


def family_of(model_dir: Path) -> Family | None:
    """The family of the model in `model_dir`; None: a text-only model.

    Raises ConfigError for a vision model of another family, for settings of its processor that are not supported, and for files
    that contradict each other. Training on texts alone needs no family: ask only where there are images.
    """
    file = Path(model_dir) / "config.json"
    config = read_json_file(file, "the model's config", keys_once=False)
    if not isinstance(config, dict):
        raise ConfigError(f"{file} contains {type(config).__name__}; expected an object, the model's config")
    read = FAMILIES.get(str(config.get("model_type")))
    if read is None:
        _refuse_vision(file, config)
        return None
    if not isinstance(config.get("vision_config"), dict):
        raise ConfigError(f"{file}: vision_config is missing; expected the config of the model's vision tower")
    return read(ModelFiles(Path(model_dir), config))


def _refuse_vision(file: Path, config: Mapping[str, Any]) -> None:
    if any(config.get(key) is not None for key in _VISION_KEYS):
        raise ConfigError(
            f"{file}: model_type is {config.get('model_type')!r}, a vision model of a family that is not known here; "
            f"expected one of {', '.join(sorted(FAMILIES))}, or a text-only model"
        )
