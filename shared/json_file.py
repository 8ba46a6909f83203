"""A JSON file that a person wrote or chose."""

import json
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.text_file import read_text_file


def read_json_file(path: Path, expected: str) -> Any:
    """Its value. Raises ConfigError with what was `expected` where it cannot be read."""
    text = read_text_file(path, expected)
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from exc
