"""The settings of a training as every tracker takes them: one level of names, each with a number, a truth value or a text.

TensorBoard takes nothing else, MLflow 500 characters of one value. What is nested gets dotted names (`optimizer.beta1`); a list,
and a setting that has no value, is written as JSON (`["q_proj", "v_proj"]`, `null`).
"""

import json
from collections.abc import Mapping
from typing import Any

from shared.names import cut

LONGEST_VALUE = 300  # characters
MOST_VALUES = 1_000

Plain = bool | int | float | str


def flattened(settings: Mapping[str, Any]) -> dict[str, Plain]:
    """Values that are too long are cut in the middle, visibly; of too many, the first ones stay."""
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
