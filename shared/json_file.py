"""A JSON file that a person wrote or chose."""

import json
from pathlib import Path
from typing import Any

from shared.errors import ConfigError


def read_json_file(path: Path, expected: str) -> Any:
    """Its value. Raises ConfigError with what was `expected` where it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror}); expected {expected}") from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from exc
