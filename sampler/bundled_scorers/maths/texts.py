"""Answers that are no mathematics: words, choices, times of day."""

import re

from sampler.bundled_scorers.maths.number_words import number_of
from sampler.bundled_scorers.maths.vocabulary import DENIED, EMPTY

FRONT = re.compile(
    r"\A(?:(?:so|thus|hence|therefore|then|finally|ok|okay|well|clearly|indeed)\b,?\s*|"
    r"(?:about|approximately|approx\.?|around|roughly|nearly|almost|exactly|only|just|simply|circa|ca\.|equals?|equal to|"
    r"a total of|in total,?|\\approx|\\sim|~|=|\\therefore|:)\s*|"
    r"#+\s*|(?:final\s+)?(?:answer|ans|result|solution)\s*[:=]\s*)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\A[12]\d{3}-(?:0[1-9]-[0-3]\d|1[0-2]-0[1-9])\Z")
_TIME = re.compile(
    r"\A(?P<h>\d{1,2})(?::(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d))?)?\s*(?P<half>[ap]\.?\s?m\.?)?\s*(?:o'?\s?clock)?\Z",
    re.IGNORECASE,
)
_CHOICE = re.compile(
    r"\A(?:(?:option|choice|answer|statement)\s+)?(?:\(([A-Ja-j])\)|([A-J])(?=\s*[.):]\s|\s*[.)]?\Z))\s*[.:)]?\s*(.*)\Z",
    re.DOTALL | re.IGNORECASE,
)
_SAME_TEXTS = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions", "none", "empty set", "there is no "
                     "solution", "there are no solutions", "no such number"), "no solution"),
    **dict.fromkeys(("does not exist", "dne", "undefined", "the limit does not exist"), "does not exist"),
    "true": "true", "t": "true", "false": "false",
}  # fmt: skip


def text_words(plain: str) -> str:
    """For texts: without letter case, brackets, punctuation and the start of a sentence. Of what is no prose, but blanks all."""
    while (match := FRONT.match(plain)) and match.end():
        plain = plain[match.end() :]
    if re.search(r"[\\\d^_=<>+*/|&#@~]", plain):
        return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", plain)
    lead = re.match(r"(?:the\s+)?(?:final\s+|correct\s+)?(?:answer|result|solution)\s+is:?\s+", plain, re.IGNORECASE)
    plain = plain[lead.end() :] if lead else plain
    words = " ".join(re.sub(r"[\s.,;:!?(){}\[\]\"'`*_]+", " ", plain).casefold().split())
    words = re.sub(r"\A(?:the|a|an) (?=\w)", "", words)
    return _SAME_TEXTS.get(words, words)


def choice_of(plain: str) -> str:
    """The letter of `(B)`, `B.`, `Option B` and `(B) 42`; empty: no choice."""
    letter = _CHOICE.match(plain)
    return (letter[1] or letter[2]).upper() if letter else ""


def is_date(text: str) -> bool:
    """Of the form 2024-01-05: no difference of three numbers, which nobody writes with a zero in front."""
    return _DATE.match(text) is not None


def time_of(text: str) -> tuple[int, str] | None:
    text = re.sub(r"\A(?:at|it is|the time is|the answer is)\s+", "", text, flags=re.IGNORECASE)
    match = _TIME.match(text)
    if match is None or (match["m"] is None and not match["half"] and "clock" not in text):
        return None
    hour, half = int(match["h"]), (match["half"] or "")[:1].upper()
    if hour > 24 or (half and not 1 <= hour <= 12):
        return None
    if half:
        hour = hour % 12 + (12 if half == "P" else 0)
    return 3600 * hour + 60 * int(match["m"] or 0) + int(match["s"] or 0), half and half + "M"


def is_harmless(words: str) -> bool:
    return not {word.strip(",'").lower() for word in words.replace("-", " ").split()} & DENIED


def label_of(words: str) -> frozenset[str] | None:
    """What is counted, in the singular; None where a word changes the number."""
    if not is_harmless(words) or number_of(words) is not None:
        return None
    parts = {word.strip(",'-").lower() for word in words.split()} - EMPTY
    return frozenset(re.sub(r"(?:(?<=s|x)es|(?<=ch)es|s)\Z", "", word) for word in parts if len(word) > 1)
