"""What a score may be: a real number of any type that the trainer can use. Checked wherever a score is given.

The trainer computes in float32 and squares what it is given (variance, norms), so a score beyond the root of float32's
largest number has no finite gradient: every step with it would be skipped.
"""

import math
import numbers
from decimal import Decimal
from typing import Any

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
LARGEST_SCORE = math.sqrt(LARGEST_FLOAT32)  # 1.8e19
EXPECTED = (
    f"a finite number from -{LARGEST_SCORE:.2g} to {LARGEST_SCORE:.2g} (beyond it float32 cannot hold the square)"
)
MAX_VALUE_CHARS = 200
_REAL_KINDS = "biuf"  # numpy's dtypes of booleans, whole numbers and floats


def real_number(value: object) -> float | None:
    """The finite number that `value` is, of whatever type: Python's, numpy's and torch's scalars and 0-d arrays, Decimal,
    Fraction. None: it is none, or no double can hold it. Texts, complex numbers and durations are none."""
    if not _is_numeric(value):
        return None
    detach = getattr(value, "detach", None)  # of torch, which warns where a gradient would be lost
    try:
        converted = float(detach() if callable(detach) else value)  # type: ignore[arg-type]  # of any type: what float() raises is caught
    except Exception:  # noqa: BLE001 - a foreign value's own method: whatever it raises, it is no number
        return None
    return converted if math.isfinite(converted) else None


def usable_score(value: object) -> float:
    """The score as a float. Raises ValueError, with what was found and expected, for what the trainer cannot use."""
    number = real_number(value)
    if number is None or abs(number) > LARGEST_SCORE:
        raise ValueError(f"{_shown(value)}; expected {EXPECTED}")
    return number


def is_usable(value: object) -> bool:
    number = real_number(value)
    return number is not None and abs(number) <= LARGEST_SCORE


def _is_numeric(value: Any) -> bool:
    shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", None)
    kind = getattr(dtype, "kind", "f")
    if dtype is not None:
        return isinstance(shape, tuple) and len(shape) == 0 and kind in _REAL_KINDS
    return isinstance(value, numbers.Real | Decimal) or (
        hasattr(value, "__float__") and not isinstance(value, numbers.Complex | str | bytes)
    )


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a foreign value's own method
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
