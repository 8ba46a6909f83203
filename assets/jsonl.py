"""Task files and conversations, as examples and recipes write them. Standard library only: recipes' own Pythons import it too."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
