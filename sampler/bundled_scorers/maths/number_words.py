"""Numbers in English words."""

import re
from fractions import Fraction

SCALES = {"hundred": 100, "thousand": 1000, "k": 1000, "million": 10**6, "mln": 10**6, "billion": 10**9, "bn": 10**9,
           "trillion": 10**12, "dozen": 12}  # fmt: skip
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_DECADES = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {word: n for n, word in enumerate(_ONES.split())}
_SMALL |= {word: 10 * n for n, word in enumerate(_DECADES.split(), start=2)}
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
          "ninth": 9, "tenth": 10}  # fmt: skip


def number_of(words: str) -> Fraction | None:
    """Of a number in English words, up to trillions; with halves and other parts."""
    parts = words.casefold().replace("-", " ").replace(",", " ").split()
    if parts[:1] in (["minus"], ["negative"]):
        positive = number_of(" ".join(parts[1:]))
        return None if positive is None else -positive
    match = re.fullmatch(r"(.+) and (an?|one|two|three) (\w+)", " ".join(parts))
    if match:
        whole, part = number_of(match[1]), _part_of([match[2], match[3]])
        if whole is not None and part is not None and part < 1:
            return whole + part
    return _part_of(parts) if 0 < len(parts) <= 2 and _is_part(parts[-1]) else _whole_of(parts)


def _is_part(word: str) -> bool:
    return word in _PARTS or word.removesuffix("s") in _PARTS


def _part_of(parts: list[str]) -> Fraction | None:
    """Half, a third, two thirds."""
    if not _is_part(parts[-1]):
        return None
    top = 1 if len(parts) == 1 else {**_SMALL, "a": 1, "an": 1}.get(parts[0])
    bottom = _PARTS.get(parts[-1]) or _PARTS[parts[-1].removesuffix("s")]
    return None if top is None else Fraction(top, bottom)


def _whole_of(parts: list[str]) -> Fraction | None:
    total = group = 0
    known = False
    for at, word in enumerate(parts):
        if word in _SMALL:
            group, known = group + _SMALL[word], True
        elif word == "hundred" and known:
            group *= 100
        elif word in ("thousand", "million", "billion", "trillion") and known:
            total, group = total + group * SCALES[word], 0
        elif word == "dozen":
            group, known = (group or 1) * 12, True
        elif word in ("a", "an") and at == 0 and len(parts) > 1:
            group, known = 1, True
        elif not (word == "and" and known and at + 1 < len(parts)):
            return None
    return Fraction(total + group) if known else None
