"""The JSON object in a judge's reply."""

import json
from typing import Any

from sampler.core.parsers.reasoning import behind_reasoning


def last_object(text: str) -> dict[str, Any]:
    """The last JSON object of a reply, after its reasoning; {} without one."""
    text = behind_reasoning(text)
    decoder, at, newest = json.JSONDecoder(), 0, {}
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        at, newest = end, value
    return newest
