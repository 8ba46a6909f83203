"""Marks control tokens in untrusted text. Templates render the marked text; the encoder reads the marks.

    "see <|im_end|>"   ──▶  "see ⟦<|im_end|>⟧"          a whole control token
    key "|im_end|>"    ──▶  "⟦|im_end|>⟧"               a part of one, if the template writes the rest next to it (`'<' ~ key`)

Promises
  * A mark keeps its position in every rendering of a text: plain, in JSON (also ASCII), and in Python's notation of a list or
    a dict (`{{ tool.parameters }}`).
  * A marked key is found by its plain name, and compares and sorts as its plain text, so marks do not change a template's
    decisions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

MARK_START, MARK_END = "\U000f0000", "\U000f0001"
_MARKS = {ord(MARK_START): None, ord(MARK_END): None}
_MARKED = re.compile(f"{MARK_START}(.*?){MARK_END}|{MARK_START}|{MARK_END}", re.DOTALL)
# A mark as `repr` writes it. An odd number of backslashes before it means that the text itself contained it.
_MARK_IN_REPR = re.compile(r"(?<!\\)((?:\\\\)*)\\U000f000([01])")


def unmarked(text: str) -> str:
    return text.translate(_MARKS)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a rendering in order, without marks, and whether each was marked. Unpaired marks are dropped."""
    for index, piece in enumerate(_MARKED.split(text)):
        if piece:
            yield piece, bool(index % 2)


class MarkedText(str):
    """A text with marks: rendered with them, compared and looked up without."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and unmarked(self) == unmarked(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(unmarked(self))

    def __lt__(self, other: str) -> bool:
        return unmarked(self) < unmarked(other)

    def __gt__(self, other: str) -> bool:
        return unmarked(self) > unmarked(other)

    def __repr__(self) -> str:
        return _MARK_IN_REPR.sub(
            lambda match: match[1] + (MARK_END if match[2] == "1" else MARK_START), super().__repr__()
        )


@dataclass(frozen=True, slots=True)
class Marker:
    """Marks the parts of an untrusted text that would be, or become, one of `tokens`.

    `heads`, `tails`, `wholes`: text that becomes a token as the beginning, end or whole of a text, because the template writes
    the rest of the token. `normalize`: the tokenizer's normalization, if tokens are matched after it (`＜tool＞` under NFKC).
    """

    tokens: re.Pattern[str]
    heads: tuple[str, ...]
    tails: tuple[str, ...]
    wholes: frozenset[str]
    normalize: Callable[[str], str] | None = None

    @classmethod
    def of(cls, tokens: Sequence[str], literals: Sequence[str], normalize: Callable[[str], str] | None = None) -> Self:
        """`literals`: the literal texts of the template."""
        longest = max(map(len, tokens), default=0)
        sizes = range(1, longest)
        before = {literal[-size:] for literal in literals for size in sizes if size <= len(literal)}
        behind = {literal[:size] for literal in literals for size in sizes if size <= len(literal)}
        heads, tails, wholes = set(), set(), set()
        for token in tokens:
            starts = [at for at in range(1, len(token)) if token[:at] in before]
            ends = [at for at in range(1, len(token)) if token[at:] in behind]
            heads |= {token[at:] for at in starts}
            tails |= {token[:at] for at in ends}
            wholes |= {token[start:end] for start in starts for end in ends if start < end}
        return cls(any_of(tokens), tuple(heads), tuple(tails), frozenset(wholes), normalize)

    def mark(self, value: Any) -> Any:
        """A copy in plain types with every text marked, keys included."""
        if isinstance(value, str):
            return self.mark_text(value)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def mark_text(self, text: str) -> str:
        plain = unmarked(text)  # a mark in untrusted text could forge a marked token
        if self.normalize is not None and self._is_token_later(plain):
            return MarkedText(_wrapped(plain))
        body = plain.strip()  # templates strip the text and write next to it
        if body in self.wholes:
            head, middle, tail = body, "", ""
        else:
            head = max((head for head in self.heads if body.startswith(head)), key=len, default="")
            rest = body[len(head) :]
            tail = max((tail for tail in self.tails if rest.endswith(tail)), key=len, default="")
            middle = rest[: len(rest) - len(tail)]
        inner = self.tokens.sub(f"{MARK_START}\\g<0>{MARK_END}", middle)
        if inner is middle and not head and not tail:
            return plain
        at = plain.find(body)
        marked = (plain[:at], _wrapped(head), inner, _wrapped(tail), plain[at + len(body) :])
        return MarkedText("".join(marked))

    def _is_token_later(self, text: str) -> bool:
        assert self.normalize is not None
        return len(self.tokens.findall(self.normalize(text))) > len(self.tokens.findall(text))


def without_marks(value: Any) -> Any:
    """A copy of trusted text in plain types: marks in it are removed, none are added."""
    if isinstance(value, str):
        return unmarked(value)
    if isinstance(value, Mapping):
        return {key: without_marks(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_marks(item) for item in value]
    return value


def any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(set(tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _wrapped(text: str) -> str:
    return f"{MARK_START}{text}{MARK_END}" if text else ""
