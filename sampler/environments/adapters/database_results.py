"""What a statement gives: its rows as text for the model, or why it was refused."""

from collections.abc import Sequence
from typing import Any

MAX_SHOWN_ROWS = 50
MAX_CELL_CHARS = 200
MAX_STATE_ROWS = 50_000  # of one table, which the hash of the state reads


class StatementRefused(Exception):
    """What the model's statement did wrong, for the model."""


def shown_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [" | ".join(columns), *(" | ".join(map(_cell, row)) for row in rows[:MAX_SHOWN_ROWS])]
    lines.append(f"[more than {MAX_SHOWN_ROWS} rows]" if len(rows) > MAX_SHOWN_ROWS else f"[{len(rows)} rows]")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = f"[{len(value)} bytes]" if isinstance(value, bytes) else "NULL" if value is None else str(value)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]}…"
