"""Reads the verdict from a judge's reply. An ambiguous reply is not a verdict: the judge is asked again.

In this order:
  a label and its value       `correct: yes`, `"verdict": "Incorrect"`, `**Final decision:** correct`
  a first or last line        of one word, with or without "Answer:" before it: `**Correct**`
  a first word and a stop     `Incorrect, because …`
  a last line                 `The predicted answer is not correct.`
Labels that disagree, a first and a last line that disagree, and a first word that the rest contradicts give no verdict.
"""

import re

_VERDICTS = {"correct": True, "right": True, "yes": True, "true": True} | dict.fromkeys(
    ("incorrect", "not correct", "wrong", "no", "false"), False
)
_VALUE = r"(not\s{1,8}correct|incorrect|correct|wrong|right|yes|no|true|false)\b"
_MARKS = " \t\"'`*_#<>[](){}.,!→-"
_SPACE = r"[\s\"'`*_]{0,8}"  # bounded, like all repetition here: a reply may be any text
_LABEL = r"(?:(?:is[_ ])?correct|correctness|verdict|judge?ment|(?:final )?decision|equivalent)"
_LABELED = re.compile(rf"\b{_LABEL}{_SPACE}[:=]{_SPACE}{_VALUE}", re.IGNORECASE)
_LINE = re.compile(rf"(?:(?:{_LABEL}|(?:final )?answer){_SPACE}[:=])?{_SPACE}{_VALUE}", re.IGNORECASE)
_FIRST_WORD = re.compile(rf"(incorrect|correct){_SPACE}[.,;:!—–]", re.IGNORECASE)
_SENTENCE = re.compile(
    rf"(?:(?:so|thus|therefore|hence),?\s)?(?:the\s)?(?:(?:predicted|model's|given)\s)?(?:answer|prediction|response)"
    rf"\sis{_SPACE}\s{_SPACE}{_VALUE}",
    re.IGNORECASE,
)
_MENTIONED = re.compile(r"\b(?:in)?correct\b|\bnot\s{1,8}correct\b|n't\s{1,8}(?:in)?correct\b", re.IGNORECASE)
_MAX_CHARS, _MAX_LINE_CHARS = 20_000, 200


def read_verdict(text: str) -> bool | None:
    """None if there is no verdict, or more than one. Linear in the length of `text`."""
    text = text.strip()[-_MAX_CHARS:]
    labeled = {_verdict(word) for word in _LABELED.findall(text)}
    if labeled:
        return labeled.pop() if len(labeled) == 1 else None
    lines = [bare for line in text.splitlines() if (bare := line.strip(_MARKS))] or [""]
    first, last = lines[0], lines[-1][:_MAX_LINE_CHARS]
    ends = {_verdict(match[1]) for line in (first, last) if (match := _LINE.fullmatch(line))}
    if ends:
        return ends.pop() if len(ends) == 1 else None
    match = _FIRST_WORD.match(first)
    if match:
        mentioned = {word.lower() for word in _MENTIONED.findall(text)}
        return _verdict(match[1]) if mentioned == {match[1].lower()} else None
    match = _SENTENCE.fullmatch(last)
    return _verdict(match[1]) if match else None


def _verdict(word: str) -> bool:
    return _VERDICTS[" ".join(word.lower().split())]
