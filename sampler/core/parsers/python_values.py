"""Calls written as Python, `box_owner(box="A", deep=[1, {"x": None}])`. Python's own compiler is never used.

Python's parser takes seconds for some malformed texts and can exhaust the C stack on others; this one visits each character a
bounded number of times, and at most MAX_DEPTH levels. Literals may be Python's or JSON's (`None`, `null`, 'a', "\\u00e9").
"""

import re
from typing import Any, NoReturn

from sampler.core.parsers.json_values import exact_float
from shared.outside_values import MAX_DEPTH

_NAME = re.compile(r"[^\W\d][\w.\-]*")
_BLANKS = re.compile(r"(?:\s|\\\n)*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?")
_LEADING_ZERO = re.compile(r"[+-]?0\d")
_STRING = {
    '"': re.compile(r'((?:[^"\\\n]|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"((?:[^'\\\n]|\\.)*+)'", re.DOTALL),
    # Without a lookahead, which Python 3.11.2 misreads under a possessive quantifier.
    '"""': re.compile(r'((?:"{0,2}(?:[^"\\]|\\.))*+)"""', re.DOTALL),
    "'''": re.compile(r"((?:'{0,2}(?:[^'\\]|\\.))*+)'''", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": "", "/": "/"}
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class NotPython(ValueError):
    """The text is not a call; the message gives the reason and position."""


class PythonReader:
    """Reads calls and values of `text` from `at` on, advancing `at`."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at
        self._began = at

    def call(self) -> tuple[str, dict[str, Any]]:
        """NAME(KEY=VALUE, …). Raises NotPython."""
        match = _NAME.match(self.text, self.at)
        if match is None:
            self._fail("no function name")
        self.at = match.end()
        self.expect("(")
        arguments: dict[str, Any] = {}
        while not self.takes(")"):
            key = _NAME.match(self.text, self.at)
            if key is None:
                self._fail("no name of an argument")
            self.at = key.end()
            self.expect("=")
            if key.group() in arguments:
                self._fail(f"the argument {key.group()[:60]} a second time")
            arguments[key.group()] = self.value()
            if not self.takes(","):
                self.expect(")")
                break
        return match.group(), arguments

    def value(self) -> Any:
        """A literal. Raises NotPython."""
        return self._value(0)

    def blanks(self) -> None:
        match = _BLANKS.match(self.text, self.at)
        assert match is not None, "blanks may be missing"
        self.at = match.end()

    def takes(self, symbol: str) -> bool:
        """Skip blanks and, if present, `symbol` and the blanks after it."""
        self.blanks()
        if not self.text.startswith(symbol, self.at):
            return False
        self.at += len(symbol)
        self.blanks()
        return True

    def expect(self, symbol: str) -> None:
        if not self.takes(symbol):
            self._fail(f"no {symbol!r}")

    def _fail(self, problem: str) -> NoReturn:
        raise NotPython(f"{problem} at character {self.at - self._began + 1}")

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep")
        start = self.text[self.at : self.at + 1]
        if start in _CLOSING and start:
            return self._container(start, depth)
        if start in ('"', "'"):
            return self._strings()
        word = _NAME.match(self.text, self.at)
        if word:
            if word.group() not in _CONSTANTS:
                self._fail(f"{word.group()[:40]!r} is no value")
            self.at = word.end()
            return _CONSTANTS[word.group()]
        return self._number()

    def _container(self, opening: str, depth: int) -> Any:
        self.at += 1
        closing, items = _CLOSING[opening], []
        pairs: dict[str, Any] = {}
        while not self.takes(closing):
            item = self._value(depth + 1)
            if opening == "{":
                if not isinstance(item, str):
                    self._fail("a key that is no text")
                if item in pairs:
                    self._fail(f"the name {item[:60]!a} a second time")
                self.expect(":")
                pairs[item] = self._value(depth + 1)
            else:
                items.append(item)
            if not self.takes(","):
                self.expect(closing)
                break
        return pairs if opening == "{" else items

    def _strings(self) -> str:
        """One string, or several adjacent ones."""
        parts = []
        while self.text.startswith(('"', "'"), self.at):
            quote = self.text[self.at : self.at + 3]
            quote = quote if quote in _STRING else quote[0]
            match = _STRING[quote].match(self.text, self.at + len(quote))
            if match is None:
                self._fail("a text that is not closed")
            self.at = match.end()
            parts.append(_unescaped(match.group(1)))
            self.blanks()
        return "".join(parts)

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            self._fail("no value")
        digits = match.group().replace("_", "")
        if len(digits) > 400:
            self._fail("a number that is too long")
        if _LEADING_ZERO.match(digits):
            self._fail("a number that begins with 0; write it as a text")
        self.at = match.end()
        try:
            return exact_float(digits) if any(c in digits for c in ".eE") else int(digits)
        except ValueError as exc:
            self._fail(str(exc))


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    whole = _ESCAPE.sub(_character, text)
    if any("\ud800" <= c <= "\udfff" for c in whole):  # JSON writes characters beyond 16 bits as surrogate pairs
        whole = whole.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return whole


def _character(match: re.Match[str]) -> str:
    escape = match.group(1)
    if escape[0] in "uUx" and len(escape) > 1:
        code = int(escape[1:], 16)
        return chr(code) if code < 0x110000 else match.group()
    if escape[0] in "01234567":
        return chr(int(escape, 8))
    if escape in "\\'\"":
        return escape
    return _PLAIN_ESCAPES.get(escape, match.group())
