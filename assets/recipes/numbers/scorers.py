"""The score of the recipe: `first_number`."""

import re
from collections.abc import Sequence

from sampler.scorers import register_scorer


@register_scorer("first_number", needs_answer=False)
def first_number(reply: str, accepted: Sequence[str]) -> float:
    """1: the first number of the reply is the right one."""
    found = re.search(r"\d+", reply)
    return float(found is not None and found.group() == accepted[0])
