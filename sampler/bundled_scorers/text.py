"""Scorers that compare texts: exact_match, includes, f1; squad_match and squad_f1, as the evaluation of SQuAD.

Letter case, white space and Unicode compatibility forms are ignored; by SQuAD's scorers ASCII punctuation and articles, too.
"""

import re
import string
import unicodedata
from collections import Counter

from sampler.core.scorers.details import LONGEST_EXPECTED, accepted_ones, quoted
from sampler.core.scorers.registry import Score, ScoringRequest, register_scorer
from shared.outside_text import clipped

# Scripts without spaces between words: each character counts as a word.
_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_LETTER = rf"[^\W{_SPACELESS}]"
_WORD = re.compile(rf"[{_SPACELESS}]|{_LETTER}+")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@register_scorer("exact_match")
async def exact_match(request: ScoringRequest) -> Score:
    """1 if the answer equals an accepted one."""
    given = _normalized(request.answer or "")
    for one in request.accepted:
        if given == _normalized(one):
            return Score(1.0, {"reason": f"equals {quoted(one)}"})
    return Score(0.0, {"reason": f"differs from {accepted_ones(request.accepted)}"})


@register_scorer("includes")
async def includes(request: ScoringRequest) -> Score:
    """1 if the answer contains an accepted one as whole words; a number must not be part of another number."""
    given = _normalized(request.answer or "")
    for one in request.accepted:
        phrase = _normalized(one)
        if phrase and re.search(_as_whole(phrase), given):
            return Score(1.0, {"found": clipped(one, LONGEST_EXPECTED), "reason": f"has the words {quoted(one)}"})
    return Score(0.0, {"reason": f"lacks the words of {accepted_ones(request.accepted)}"})


def _as_whole(phrase: str) -> str:
    """A pattern for `phrase` between word boundaries."""
    before = rf"(?<!{_LETTER})" if re.match(_LETTER, phrase[0]) else ""
    after = rf"(?!{_LETTER})" if re.match(_LETTER, phrase[-1]) else ""
    if phrase[0].isdigit():
        before += r"(?<!\d[.,])(?:(?<![-\u2212])|(?<=\w[-\u2212]))"  # 5 is not in 1.5 or -5, but in 3-5
    if phrase[-1].isdigit():
        after += r"(?![.,]\d)"
    return before + re.escape(phrase) + after


@register_scorer("f1")
async def f1(request: ScoringRequest) -> Score:
    """Harmonic mean of precision and recall over the words shared by the answer and the best accepted one.

    The evaluation of SQuAD (Rajpurkar et al. 2016, section 6), without punctuation and articles. In a script without
    spaces, each character counts as a word.
    """
    given = _words(request.answer or "")
    if not request.accepted:
        return Score(0.0, {"reason": f"compared with {accepted_ones(())}"})
    best, expected = max(
        ((one, _words(one)) for one in request.accepted), key=lambda candidate: _f1(given, candidate[1])
    )
    shared = (given & expected).total()
    reason = f"of its {given.total()} words {shared} are among the {expected.total()} of {quoted(best)}"
    return Score(_f1(given, expected), {"reason": reason})


@register_scorer("squad_match")
async def squad_match(request: ScoringRequest) -> Score:
    """1 if the answer equals an accepted one, without letter case, ASCII punctuation, articles and white space.

    The exact match of SQuAD (Rajpurkar et al. 2016, `evaluate-v1.1.py`). Texts of which nothing would remain, such as "The", are
    compared as they are.
    """
    for one in request.accepted:
        if _squad(request.answer or "") == _squad(one):
            return Score(1.0, {"reason": f"the same words as {quoted(one)}"})
    return Score(0.0, {"reason": f"other words than {accepted_ones(request.accepted)}"})


@register_scorer("squad_f1")
async def squad_f1(request: ScoringRequest) -> Score:
    """The F1 of SQuAD over the words of `squad_match`: the best one of the accepted answers."""
    given = Counter(_squad(request.answer or "").split())
    if not request.accepted:
        return Score(0.0, {"reason": f"compared with {accepted_ones(())}"})
    best, value = max(((one, _f1(given, Counter(_squad(one).split()))) for one in request.accepted), key=lambda f: f[1])
    return Score(value, {"reason": f"F1 {value:.3g} with {quoted(best)}"})


def _squad(text: str) -> str:
    plain = _ARTICLE.sub(" ", text.lower().translate(_ASCII_PUNCTUATION))
    return " ".join(plain.split()) or _normalized(text)


def _f1(given: Counter[str], expected: Counter[str]) -> float:
    if not given or not expected:
        return float(given == expected)
    shared = (given & expected).total()
    return 2 * shared / (given.total() + expected.total())


def _words(text: str) -> Counter[str]:
    plain = "".join(char for char in _normalized(text) if not unicodedata.category(char).startswith("P"))
    return Counter(_WORD.findall(_ARTICLE.sub(" ", plain)))


def _normalized(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
