"""When a model goes round in circles: it says what it has said before, or a reply never ends because its end repeats itself."""

import json

from sampler.history.history import History
from sampler.sampler import Turn

# Shorter tails repeat in honest texts too: rulers, rows of zeros, a table's border.
MIN_LOOP_CHARS = 200


def times_said(history: History, turn: Turn) -> int:
    """How often the reply was said, this time included, as far as `history` shows; or how often its end repeats itself, for a
    reply that was cut by its token budget. 1: there is no repetition."""
    if turn.finish_reason == "length":
        return tail_repeats(turn.text)
    words = said(turn)
    return 1 + sum(one.said == words for one in history.rounds)


def said(turn: Turn) -> str:
    """What the reply says and calls, without reasoning, blanks around it and ids of calls."""
    parsed = turn.parsed
    if parsed.errors:
        return turn.text.strip()
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return json.dumps([parsed.content.strip(), calls], sort_keys=True)


def tail_repeats(text: str) -> int:
    """The most times that some piece stands one after the other at the end of `text`, over MIN_LOOP_CHARS at least; else 1.

    A last piece that is cut counts with the whole ones before it. Linear in the text: the Z-function (Gusfield, Algorithms on
    Strings, 1.3) of the reversed text gives, per period, how far back it holds.
    """
    reversed_text = text.rstrip("\ufffd")[::-1]  # a character of which only some bytes were sampled
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
