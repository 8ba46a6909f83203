"""Whether two answers are the same, by their readings.

numbers        exactly        expressions    at rational points, exactly or to 300 digits
lists, sets    in any order   tuples         in their order        intervals   also as inequalities
equations      up to a factor `x = 5` is 5   units   converted; one without a unit has any; percent is also a hundredth
"""

from fractions import Fraction

from sampler.bundled_scorers.maths.prose import MOST_CHARS, AnswerReading, Weak, answer_of
from sampler.bundled_scorers.maths.readings import Collection, Reading
from sampler.bundled_scorers.maths.same_readings import same
from sampler.bundled_scorers.maths.terms import Call, Number, Term
from sampler.bundled_scorers.maths.units import UNITS, Unit

_BEYOND = ("\\int", "\\sum", "\\prod", "\\lim", "\\det", "\\oint", "\\iint")  # what math-verify may read


def decide(answer: str, expected: str) -> bool | None:
    """None: unknown, because one of the texts is mathematics beyond this reading. Raises TooHard."""
    if answer.split() == expected.split():
        return True
    given, gold = answer_of(answer), answer_of(expected)
    if gold.time and given.time:
        return gold.time[0] == given.time[0]
    if _is_letter(expected, gold) and given.choice:
        return given.choice == gold.choice
    if given.words == gold.words and given.words and given.reading is None and gold.reading is None:
        return True
    if given.reading is not None and gold.reading is not None:
        return _same_quantities(given, gold)
    if any(command in text for text in (answer, expected) for command in _BEYOND):
        return None
    return bool(given.words) and given.words == gold.words


def unusable(expected: str) -> str:
    """Why nothing can be compared with this accepted answer; empty: it can. With one of too many digits its text is compared."""
    if not expected.strip():
        return "it holds no expression"
    if len(expected) > MOST_CHARS:
        return f"not decided: it is longer than {MOST_CHARS} characters"
    answer_of(expected)
    return ""


def _is_letter(text: str, answer: AnswerReading) -> bool:
    return (
        bool(answer.choice)
        and len("".join(c for c in text if c.isalpha())) == 1
        and answer.choice in "ABCDE"
        and text.strip("() .$") == text.strip("() .$").upper()
    )


def _same_quantities(a: AnswerReading, b: AnswerReading) -> bool:
    assert a.reading is not None
    assert b.reading is not None
    if isinstance(a, Weak) and isinstance(b, Weak):
        return same(a.reading, b.reading)
    if isinstance(a, Weak) or isinstance(b, Weak):
        return _same_weak(a, b)
    if a.label and b.label and not (a.label <= b.label or b.label <= a.label):
        return False
    if a.unit is not None and b.unit is not None:
        if {a.unit, b.unit} == {UNITS["pound"], UNITS["GBP"]}:  # of weight, or of money
            return same(a.reading, b.reading)
        return a.unit.dimension == b.unit.dimension and same(_sized(a.reading, a.unit), _sized(b.reading, b.unit))
    if (a.unit is not None and b.label) or (b.unit is not None and a.label):
        return False
    with_unit, other = (a, b) if a.unit is not None else (b, a)
    assert with_unit.reading is not None
    assert other.reading is not None
    if same(with_unit.reading, other.reading):
        return True
    if with_unit.unit is None or not isinstance(with_unit.reading, Term) or not isinstance(other.reading, Term):
        return False
    measured = dict(with_unit.unit.dimension)
    if measured == {"percent": 1}:
        return same(Call("/", with_unit.reading, Number(Fraction(100))), other.reading)
    return measured == {"angle": 1} and same(Call("degrees", with_unit.reading), other.reading)


def _same_weak(a: AnswerReading, b: AnswerReading) -> bool:
    """Of `5m` and what has a unit, or is an expression."""
    weak, other = (a, b) if isinstance(a, Weak) else (b, a)
    assert isinstance(weak, Weak)
    assert weak.unit is not None
    assert other.reading is not None
    if other.unit is not None:
        amount = AnswerReading("", weak.amount, weak.unit)
        return _same_quantities(amount, other)
    assert weak.reading is not None
    return same(weak.reading, other.reading)


def _sized(reading: Reading, unit: Unit) -> Reading:
    if isinstance(reading, Collection):
        return Collection(
            reading.kind, tuple(_sized(item, unit) for item in reading.items), reading.opening, reading.closing
        )
    return Call("*", reading, Number(unit.size)) if isinstance(reading, Term) else reading
