"""Answers as people write them: a number in a sentence, with its unit, in words, a time of day, a choice.

    The answer is about 18 km/h.  ─▶  18, km/h      42 (forty-two)  ─▶  42      10:30 AM  ─▶  a time      (B) 7  ─▶  choice B

A sentence has a number only where every other word is harmless: `not 42`, `41 or 42` and `less than 42` have none.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from sampler.bundled_scorers.maths.cleaning import cleaned
from sampler.bundled_scorers.maths.grammar import read
from sampler.bundled_scorers.maths.lexing import NotRead
from sampler.bundled_scorers.maths.number_words import SCALES, number_of
from sampler.bundled_scorers.maths.readings import Collection, Reading
from sampler.bundled_scorers.maths.terms import Call, Number, Term
from sampler.bundled_scorers.maths.texts import FRONT, choice_of, is_date, is_harmless, label_of, text_words, time_of
from sampler.bundled_scorers.maths.units import CURRENCIES, LETTERS, Unit, unit_of
from sampler.bundled_scorers.maths.vocabulary import DENIED, PLACES

MOST_CHARS = 10_000


@dataclass(frozen=True)
class AnswerReading:
    """`reading`: None: the text is no mathematics. `unit` and `label` (words that are none) of a quantity. `is_weak`: the unit
    may be a variable. `words`: the text to compare with other texts."""

    words: str
    reading: Reading | None = None
    unit: Unit | None = None
    label: frozenset[str] = frozenset()
    is_weak: bool = False
    choice: str = ""
    time: tuple[int, str] | None = None  # seconds since midnight; AM, PM or nothing


@dataclass(frozen=True)
class Weak(AnswerReading):
    """`5m`: 5 times a variable, or metres: `amount` is then the number."""

    amount: Reading | None = None

    def __init__(self, words: str, reading: Reading, unit: Unit, amount: Reading) -> None:
        super().__init__(words, reading, unit, frozenset(), True)
        object.__setattr__(self, "amount", amount)


_LEAD = re.compile(
    r"\A(?P<lead>[A-Za-z][A-Za-z' ,-]*?)\s*(?:\b(?:is|are|was|were|be|equals?|has|have|had|costs?|takes?|gets?|makes?|earns?|"
    r"needs?|gives?|becomes?|remains?|contains?)\b\s*(?:equal to\b|:)?|[:=])\s*(?=\S)(?P<rest>.+)\Z",
    re.IGNORECASE | re.DOTALL,
)
_LEADING_WORDS = re.compile(r"\A(?P<lead>(?:[A-Za-z][a-z']+,? )+)(?P<rest>[-+(\\]?.*\d.*)\Z", re.DOTALL)
_ASIDE = re.compile(r"\A(?P<rest>.*[^\s(])\s*\((?P<aside>[A-Za-z][A-Za-z :,'-]+)\)\Z", re.DOTALL)
_TRAILING = re.compile(r"\A(?P<rest>.*[\d)}\]!%])[,;]?\s+(?P<words>[A-Za-z][A-Za-z' ,-]*)\Z", re.DOTALL)
_RATIO = re.compile(r"\A[^:]+(?::[^:]+)+\Z")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b(?!\s*root)")
_BASED = re.compile(
    r"\A(?P<digits>[0-9A-Za-z]+)\s*(?:_\s*\{?\s*|,?\s*\(?(?:in\s+)?base[\s-]*)(?P<base>\d+|two|three|eight|ten|sixteen)\s*\}?\)?\Z",
    re.IGNORECASE,
)
_BASES = {"two": "2", "three": "3", "eight": "8", "ten": "10", "sixteen": "16"}
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\(?:circ|degree)\s*\}?\s*(?P<scale>[CFK])?\Z")
_CURRENCY = re.compile(
    rf"\A(?P<sign>[-+]?\s*)(?:US|USD)?\s*(?P<unit>{'|'.join(map(re.escape, CURRENCIES))}|(?:USD|EUR|GBP|INR|JPY|Rs)\b)"
    r"\.?\s*(?P<rest>.+)\Z",
    re.DOTALL,
)
_UNIT_FRACTION = re.compile(r"\A\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_UNIT_WORDS = re.compile(r"\\[A-Za-z]+|[A-Za-z]+|-?\d+|\S")
_SCALED = re.compile(
    r"\A(?P<rest>.*\d)\s*(?P<scale>hundred|thousand|million|billion|trillion|dozen|[kK](?=\Z)|mln|bn)\b\s*(?P<more>.*)\Z",
    re.DOTALL,
)


def answer_of(text: str) -> AnswerReading:
    """Never raises NotRead."""
    if len(text) > MOST_CHARS:
        return AnswerReading(text)
    plain = cleaned(text)
    words = text_words(plain)
    clock = time_of(plain)
    if clock is not None:
        return AnswerReading(words, time=clock)
    quantity = None if is_date(plain) else _quantity(plain, 0)
    choice = choice_of(plain)
    if quantity is None:
        return AnswerReading(words, choice=choice)
    return AnswerReading(words, quantity.reading, quantity.unit, quantity.label, quantity.is_weak, choice)


def _try(text: str) -> Reading | None:
    try:
        return read(text)
    except NotRead:
        return None


def _quantity(text: str, depth: int) -> AnswerReading | None:
    """`words` of what is returned is not set. None: no quantity."""
    if not text or depth > 8:
        return None
    for way in (
        _based,
        _in_degrees,
        _of_money,
        _with_unit,
        _in_words,
        _plain,
        _words_with_unit,
        _ratio,
        _scaled,
        _compound,
    ):
        reading = way(text, depth)
        if reading is not None:
            return reading
    return _sentence(text, depth)


def _plain(text: str, depth: int) -> AnswerReading | None:
    if _is_one_word(text):
        return None
    reading = _try(_ORDINAL.sub("", text))
    if reading is None:
        return None
    weak = re.fullmatch(r"(.*\d)([A-Za-z]{1,2})", text)
    if weak and (unit := unit_of((weak[2],))) is not None and (inner := _try(weak[1])) is not None:
        return AnswerReading("", reading, None) if weak[2] in ("i", "e") else Weak("", reading, unit, inner)
    return AnswerReading("", reading)


def _is_one_word(text: str) -> bool:
    """A word such as "yes", which is no product of variables."""
    return re.fullmatch(r"[A-Za-z]{2,}", text) is not None and not re.fullmatch(
        r"[abcxyz]{2,3}|pi|inf|infinity|Infinity", text
    )


def _based(text: str, depth: int) -> AnswerReading | None:
    match = _BASED.match(text)
    if match is None or not any(char.isdigit() or char.isupper() for char in match["digits"]):
        return None
    base = int(_BASES.get(match["base"].lower(), match["base"]))
    if not 2 <= base <= 36 or (len(match["digits"]) == 1 and match["digits"].isalpha()):
        return None
    try:
        return AnswerReading("", Number(Fraction(int(match["digits"], base))))
    except ValueError:
        return None


def _in_degrees(text: str, depth: int) -> AnswerReading | None:
    match = _DEGREES.search(text)
    if match is None or (reading := _try(text[: match.start()])) is None:
        return None
    whole = None if match["scale"] else _try(text)
    if isinstance(whole, Term) and not (isinstance(whole, Call) and whole.name == "degrees"):
        return AnswerReading("", whole)  # sin 30°
    names = {None: "degree", "C": "celsius", "F": "fahrenheit", "K": "kelvin"}
    return AnswerReading("", reading, unit_of((names[match["scale"]],)))


def _of_money(text: str, depth: int) -> AnswerReading | None:
    match = _CURRENCY.match(text)
    if match is None:
        return None
    rest = match["sign"] + match["rest"]
    each = re.fullmatch(r"(.*[\d}])\s*/\s*([A-Za-z]+)", rest)
    inner = _scaled(rest, depth) or _quantity(each[1] if each else rest, depth + 1)
    unit = unit_of((match["unit"],))
    if inner is None or inner.reading is None or unit is None or isinstance(inner, Weak):
        return None
    whole = unit if inner.unit is None or inner.unit.dimension == unit.dimension else None
    return None if whole is None else AnswerReading("", inner.reading, whole, inner.label)


def _with_unit(text: str, depth: int) -> AnswerReading | None:
    """The shortest beginning that is mathematics, before a unit."""
    for match in re.finditer(
        r"(?:(?<=[\d)}\]!])\s*|(?<=\w)\s+)(?=[A-Za-z%¢]|\\(?:dollar|euro|pound|yen|rupee|mu|Omega)\b|\\frac\s*\{\s*[A-Za-z])",
        text,
    ):
        end = _UNIT_FRACTION.sub(r"\1 / \2", text[match.end() :])
        words = tuple(_UNIT_WORDS.findall(end.replace("{", " ").replace("}", " ").replace(".", " ")))
        is_glued = not match[0] and words[0] in LETTERS
        if is_glued and len(words) == 1:
            continue
        unit = unit_of(words)
        if unit is not None and (reading := _try(text[: match.start()])) is not None:
            return AnswerReading("", reading, unit)
    return None


def _in_words(text: str, depth: int) -> AnswerReading | None:
    value = number_of(text)
    if (
        value is None
        and (match := re.fullmatch(r"(-?)(\d+) and (?:a )?(\d+)/(\d+)", text))
        and int(match[3]) < int(match[4])
    ):
        value = (int(match[2]) + Fraction(int(match[3]), int(match[4]))) * (-1 if match[1] else 1)
    return None if value is None else AnswerReading("", Number(value, value.denominator == 1))


def _words_with_unit(text: str, depth: int) -> AnswerReading | None:
    """Seventeen apples, half an hour."""
    words = text.split()
    if len(words) > 20 or not words or not words[0][:1].isalpha():
        return None
    for at in range(len(words) - 1, 0, -1):
        value = number_of(" ".join(words[:at]))
        if value is None:
            continue
        rest = words[at + 1 :] if words[at] in ("a", "an", "of") and at + 1 < len(words) else words[at:]
        unit = unit_of(tuple(_UNIT_WORDS.findall(" ".join(rest))))
        if unit is not None:
            return AnswerReading("", Number(value), unit)
        label = label_of(" ".join(rest))
        return None if label is None else AnswerReading("", Number(value), None, label)
    return None


def _ratio(text: str, depth: int) -> AnswerReading | None:
    if not _RATIO.match(text):
        return None
    parts = [_try(part.strip()) for part in text.split(":")]
    terms = [part for part in parts if isinstance(part, Term)]
    return AnswerReading("", Collection("ratio", tuple(terms))) if len(terms) == len(parts) else None


def _scaled(text: str, depth: int) -> AnswerReading | None:
    match = _SCALED.match(text)
    if match is None or not isinstance(reading := _try(match["rest"]), Term):
        return None
    scaled = Call("*", reading, Number(Fraction(SCALES[match["scale"].lower()])))
    rest = tuple(_UNIT_WORDS.findall(match["more"]))
    if not rest:
        return AnswerReading("", scaled)
    unit = unit_of(rest)
    if unit is not None:
        return AnswerReading("", scaled, unit)
    label = label_of(match["more"])
    return None if label is None else AnswerReading("", scaled, None, label)


def _compound(text: str, depth: int) -> AnswerReading | None:
    """2 hours 30 minutes: amounts of one dimension, from large to small."""
    parts = re.findall(r"(\d[\d.,/ ]*?)\s*([A-Za-z]+)\.?(?:,?\s*and\s+|,?\s+|\Z)", text)
    if len(parts) < 2 or re.sub(r"[\s.,]|and", "", text) != re.sub(r"[\s.,]|and", "", "".join(a + b for a, b in parts)):
        return None
    total: Term = Number(Fraction(0))
    first: Unit | None = None
    for amount, name in parts:
        unit, value = unit_of((name,)), _try(amount.strip())
        if unit is None or not isinstance(value, Term) or (first is not None and unit.dimension != first.dimension):
            return None
        first = first or unit
        total = Call("+", total, Call("*", value, Number(unit.size / first.size)))
    return AnswerReading("", total, first)


def _sentence(text: str, depth: int) -> AnswerReading | None:
    """Without harmless words around it."""
    match = FRONT.match(text)
    if match and match.end():
        return _quantity(text[match.end() :].strip(), depth + 1)
    aside = _ASIDE.match(text)
    if aside and (inner := _quantity(aside["rest"], depth + 1)) is not None:
        value = number_of(aside["aside"])
        is_same = value is None or (isinstance(inner.reading, Number) and inner.reading.exact == value)
        is_remark = not set(re.findall(r"[a-z]+", aside["aside"].lower())) & (DENIED - PLACES)
        return inner if is_same and (value is not None or is_remark) else None
    lead = _LEAD.match(text)
    if lead:
        if re.fullmatch(r"[A-Za-z]", lead["lead"]) and (named := _try(f"{lead['lead']} = {lead['rest']}")) is not None:
            return AnswerReading("", named)
        if is_harmless(lead["lead"]) and (inner := _quantity(lead["rest"], depth + 1)) is not None:
            return inner
    trailing = _TRAILING.match(text)
    if trailing and (label := label_of(trailing["words"])) is not None:
        inner = _quantity(trailing["rest"], depth + 1)
        if inner is None or isinstance(inner, Weak):
            return None
        return AnswerReading("", inner.reading, inner.unit, inner.label | label)
    leading = _LEADING_WORDS.match(text)
    if leading and is_harmless(leading["lead"]):
        return _quantity(leading["rest"], depth + 1)
    return None
