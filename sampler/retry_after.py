"""How long a server asks to be left alone: the HTTP header `Retry-After` (RFC 9110, section 10.2.3)."""

import email.utils
import math
import time
from collections.abc import Mapping


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, from seconds or a date; None where there is none, or it cannot be read."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):  # a date that no clock can show
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
