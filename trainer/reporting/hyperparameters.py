"""Flattens settings for trackers: one level of names, each with a number, a boolean or a text.

TensorBoard accepts nothing else, MLflow 500 characters per value. Nested settings get dotted names (`optimizer.beta1`); lists
and None are written as JSON (`["q_proj", "v_proj"]`, `null`).
"""

import json
from collections.abc import Mapping
from typing import Any

from shared.names import cut

LONGEST_VALUE = 300  # characters
MOST_VALUES = 1_000

Plain = bool | int | float | str


def flattened(settings: Mapping[str, Any]) -> dict[str, Plain]:
    """Flatten settings. Long values are cut in the middle with a mark; beyond the maximum number, later ones are dropped."""
    flat: dict[str, Plain] = {}
    _add(flat, "", settings)
    return flat


def _add(flat: dict[str, Plain], name: str, value: Any) -> None:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            _add(flat, f"{name}.{key}" if name else str(key), item)
    elif len(flat) < MOST_VALUES:
        plain = value if isinstance(value, Plain) else json.dumps(value, ensure_ascii=False, default=str)
        flat[name] = cut(plain, LONGEST_VALUE) if isinstance(plain, str) else plain
