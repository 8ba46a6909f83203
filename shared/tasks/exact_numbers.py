"""Numbers of task files as texts: every digit that was written, as a plain decimal.

    0.00001, 1e-05  ─▶  "0.00001"        1e16  ─▶  "10000000000000000"        1.50  ─▶  "1.50"

A scorer compares texts, and reads `1e-05` as e − 5; and a double has not every digit of what stands in a file.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np


class ExactFloat(float):
    """A number of a JSON file, as a double, and how it is written there."""

    written: str

    @classmethod
    def of(cls, written: str) -> "ExactFloat":
        """The hook `parse_float` of `json`."""
        number = cls(written)
        number.written = written
        return number


def is_number(value: object) -> TypeGuard[float | Decimal]:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def number_text(value: float | Decimal) -> str:
    """A plain decimal, without an exponent. What no double can hold stays as it is written, and is refused where it is read."""
    if isinstance(value, int):
        return str(value)
    written = value.written if isinstance(value, ExactFloat) else str(value)
    return format(Decimal(written), "f") if math.isfinite(value) and not _is_tiny(value, written) else written


def _is_tiny(value: float | Decimal, written: str) -> bool:
    """Whether a double is 0 where the text is not: a text of a few characters may have millions of decimals."""
    return float(value) == 0 and bool(Decimal(written))


def in_shortest_digits(kind: Any) -> Callable[[Any], Any] | None:
    """How a value of an Arrow type of 16 or 32 bits becomes the double with the same shortest digits (0.1, not 0.10000000149),
    also in lists; None: for other types it is what it should be."""
    import pyarrow

    if pyarrow.types.is_float32(kind):
        return lambda value: None if value is None else float(str(np.float32(value)))
    if pyarrow.types.is_float16(kind):
        return lambda value: None if value is None else float(str(np.float16(value)))
    inner = in_shortest_digits(kind.value_type) if pyarrow.types.is_list(kind) else None
    return inner and (lambda values: None if values is None else [inner(value) for value in values])
