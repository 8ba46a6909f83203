"""Tokens of a cleaned text. Numbers are exact: grouped thousands, decimals, repeating decimals, powers of ten."""

import re
from dataclasses import dataclass
from fractions import Fraction

MOST_EXPONENT = 20_000  # of ten, that is written out
MOST_DIGITS = 20_000


class NotRead(Exception):
    """The text is none of this language."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """`kind`: number, word, command, sign. `spaced`: blanks stand before it. `written`: its text."""

    kind: str
    written: str
    spaced: bool
    value: Fraction | None = None
    is_whole: bool = False  # a number without a point


_THOUSANDS = r"\d{1,3}(?:,\d{3})+(?![\d,])"
_SPACED = r"\d{1,3}(?: \d{3})+(?!\d)"
_NUMBER = re.compile(
    rf"(?P<digits>\d+\.(?=\\)|(?:{_THOUSANDS}|{_SPACED}|\d+)?(?:\.\d+)?|\d+\.)"
    r"(?:(?P<repeated>\\overline\s*\{\s*\d+\s*\}|\\overline\s*\d|\\dot\s*\{?\s*\d\s*\}?|\\bar\s*\{?\s*\d+\s*\}?)|"
    r"(?P<dots>\.\.\.|\\ldots|\\dots|\\cdots))?"
    r"(?:(?<=[\d.])[eE](?P<power>[+-]?\d+)(?![\w.]))?"
)
_PLAIN = re.compile(r"(?P<digits>(?:\d+)?(?:\.\d+)?|\d+\.)(?:[eE](?P<power>[+-]?\d+)(?![\w.]))?")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")
_WORD = re.compile(r"[A-Za-z\u00c0-\u024f\u0370-\u03ff\u3040-\u30ff\u4e00-\u9fff]+")
_OPEN, _CLOSE = "([{", ")]}"


def tokens_of(text: str) -> list[Lexeme]:
    """Raises NotRead. Between brackets a comma separates; elsewhere `1,000` is one number."""
    tokens: list[Lexeme] = []
    at, depth, spaced = 0, 0, False
    while at < len(text):
        char = text[at]
        if char == " ":
            at, spaced = at + 1, True
            continue
        if (char.isdigit() and char.isascii()) or (char == "." and text[at + 1 : at + 2].isdigit()):
            token, at = _number(text, at, spaced, is_list=depth > 0)
        elif char == "\\":
            match = _COMMAND.match(text, at)
            if match is None:
                raise NotRead("a backslash alone")
            token, at = Lexeme("command", match[0], spaced), match.end()
        elif match := _WORD.match(text, at):
            token, at = Lexeme("word", match[0], spaced), match.end()
        else:
            two = text[at : at + 2]
            written = two if two in ("**", "<=", ">=", "!=", "==", "=>", "->") else char
            if char.isspace() or not char.isprintable():
                raise NotRead(f"a character {char!r}")
            token, at = Lexeme("sign", written, spaced), at + len(written)
        depth += (token.written in _OPEN and token.kind == "sign") - (token.written in _CLOSE and token.kind == "sign")
        depth += (token.written == "\\{") - (token.written == "\\}")
        tokens.append(token)
        spaced = False
    return tokens


def _number(text: str, at: int, spaced: bool, *, is_list: bool) -> tuple[Lexeme, int]:
    match = (_PLAIN if is_list and not _repeats(text, at) else _NUMBER).match(text, at)
    if match is None or not match["digits"] or len(match["digits"]) > MOST_DIGITS:
        raise NotRead("a number that cannot be read")
    groups = match.groupdict()
    digits = match["digits"].replace(",", "").replace(" ", "")
    value = Fraction(digits if digits[-1] != "." else digits[:-1])
    decimals = len(digits.partition(".")[2])
    if groups.get("repeated"):
        period = re.sub(r"\D", "", groups["repeated"])
        value += Fraction(int(period), (10 ** len(period) - 1) * 10**decimals)
    elif groups.get("dots"):
        value += _continued(digits, decimals)
    if groups["power"]:
        power = int(groups["power"])
        if abs(power) > MOST_EXPONENT:
            raise NotRead("an exponent beyond all use")
        value *= Fraction(10) ** power
    is_whole = "." not in match[0] and not groups["power"] and not groups.get("repeated")
    return Lexeme("number", match[0], spaced, value, is_whole), match.end()


def _repeats(text: str, at: int) -> bool:
    return re.compile(r"\d*\.\d*(?:\\(?:overline|dot|bar|ldots|dots|cdots)|\.\.\.)").match(text, at) is not None


def _continued(digits: str, decimals: int) -> Fraction:
    """0.333...: the last digits, which stand there at least twice (three times if it is one), go on. Raises NotRead."""
    tail = digits.partition(".")[2]
    for size in range(1, 9):
        period, times = tail[-size:], 3 if size == 1 else 2
        if len(tail) >= size * times and tail.endswith(period * times):
            return Fraction(int(period), (10**size - 1) * 10**decimals)
    raise NotRead("decimals that go on as nobody knows")
