"""A rubric in a task's metadata: a list of items, each a text or {"item": text, "weight": number above 0}."""

import math
from typing import Any

RUBRIC_KEY = "rubric"
MOST_ITEMS = 50


def rubric_problem(rubric: Any) -> str | None:
    """What is wrong with a list of items; None: nothing."""
    if not isinstance(rubric, list) or not 0 < len(rubric) <= MOST_ITEMS:
        return f"metadata.{RUBRIC_KEY} is no list of items; expected 1 to {MOST_ITEMS} texts, or objects with item and weight"
    for k, one in enumerate(rubric):
        text, weight = (one.get("item"), one.get("weight", 1)) if isinstance(one, dict) else (one, 1)
        if not isinstance(text, str) or not text.strip():
            return f'metadata.{RUBRIC_KEY}.{k} has no text; expected a text, or {{"item": a text, "weight": a number}}'
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            return f"metadata.{RUBRIC_KEY}.{k}.weight is {weight!r}; expected a number above 0"
    return None
