"""The score of the recipe: `last_number`."""

import re
from collections.abc import Sequence

from sampler.scorers import register_scorer


@register_scorer("last_number", needs_answer=False)
def last_number(reply: str, accepted: Sequence[str]) -> float:
    """1: the last number of the reply is the right one; 70.0 is 70."""
    found = re.findall(r"-?\d+(?:\.\d+)?", reply)
    return float(bool(found) and float(found[-1]) == float(accepted[0]))
