"""Detects a looping model: a reply that repeats an earlier one, or that never ends because its tail repeats."""

import json

from sampler.core.history.history import History
from sampler.core.rendering.turn import Turn

# Shorter tails also repeat in normal text: rulers, rows of zeros, table borders.
MIN_LOOP_CHARS = 200


def times_repeated(history: History, turn: Turn) -> int:
    """How often the reply occurred in `history`, including this time; for a reply that was cut off by its token budget,
    how often its tail repeats. 1: no repetition."""
    if turn.finish_reason == "length":
        return tail_repeats(turn.text)
    words = compared_text(turn)
    return 1 + sum(one.text == words for one in history.rounds)


def compared_text(turn: Turn) -> str:
    """The reply's text and calls, without reasoning, surrounding blanks and call ids."""
    parsed = turn.parsed
    if parsed.errors:
        return turn.text.strip()
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return json.dumps([parsed.content.strip(), calls], sort_keys=True)


def tail_repeats(text: str) -> int:
    """The highest number of consecutive copies of a piece at the end of `text` that span at least MIN_LOOP_CHARS; else 1.

    A partial last copy counts together with the whole copies before it. Linear in the text: the Z-function (Gusfield,
    Algorithms on Strings, 1.3) of the reversed text gives, per period, how far back it holds.
    """
    reversed_text = text.rstrip("\ufffd")[::-1]  # the replacement character of a partly sampled character
    most = 1
    for period, length in enumerate(_z_function(reversed_text)):
        if period and period + length >= MIN_LOOP_CHARS:
            most = max(most, (period + length) // period)
    return most


def _z_function(text: str) -> list[int]:
    """z[i]: length of the longest common prefix of `text` and `text[i:]`."""
    size = len(text)
    z = [0] * size
    left = right = 0
    for i in range(1, size):
        length = min(right - i, z[i - left]) if i < right else 0
        while i + length < size and text[length] == text[i + length]:
            length += 1
        z[i] = length
        if i + length > right:
            left, right = i, i + length
    return z
