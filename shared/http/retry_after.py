"""Reads the HTTP header `Retry-After`: how long a server wants no requests (RFC 9110, section 10.2.3)."""

import email.utils
import math
import time
from collections.abc import Mapping


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, from seconds or a date; None if the header is missing or unreadable."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):  # a date out of range
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
