"""How few tokens a text can have: a lower bound that costs nothing, for texts that are too long to be encoded to count them.

A token stands for at most as many characters as its own text has; so N characters are at least N / (the longest token) tokens.
That holds for tokenizers that work on bytes, and drop nothing but the bytes that their vocabulary lacks. For others there is no
bound.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

_MOST_COMPOSED = 4  # characters that one of Unicode's compositions replaces
_COMPOSING = ("NFC", "NFKC")
_KEEPING_NORMALIZERS = {"NFD", "NFKD", "Prepend", "Lowercase", "ByteLevel", *_COMPOSING}
_KEEPING_SPLITS = {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation", "UnicodeScripts", "FixedLength"}
_NUM_BYTES = 256
_CONTINUING = range(0x80, 0xC0)  # bytes of characters beyond ASCII, each of which has one


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """`longest`: characters of the longest token; None: texts of this tokenizer have no bound. `dropped`: characters without a
    token."""

    longest: int | None
    composes: bool = False
    dropped: str = ""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "LeastTokens":
        normalizers, splits = list(_steps(tokenizer.normalizer)), list(_steps(tokenizer.pre_tokenizer))
        added = tokenizer.get_added_tokens_decoder().values()
        by_bytes = any(step["type"] == "ByteLevel" for step in [*normalizers, *splits])
        dropped = _dropped(tokenizer, by_bytes)
        keeps_rest = (
            all(map(_normalizer_keeps, normalizers))
            and all(map(_split_keeps, splits))
            and not any(token.lstrip or token.rstrip for token in added)
        )
        if dropped is None or not keeps_rest:
            return cls(None)
        composes = any(step["type"] in _COMPOSING for step in normalizers)
        return cls(max(map(len, tokenizer.get_vocab())), composes, dropped)

    def __call__(self, text: str, ignored: str = "") -> int:
        """`ignored`: characters that are taken out before the text is encoded."""
        if self.longest is None or len(text) <= self.longest:
            return 0
        count = len(text) - sum(map(text.count, self.dropped + ignored))
        if self.composes and not unicodedata.is_normalized("NFC", text):
            count //= _MOST_COMPOSED
        return -(-count // self.longest)


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer, as its file has it; of a sequence each."""
    if part is None:
        return
    step = json.loads(part.__getstate__())
    for key in ("normalizers", "pretokenizers"):
        if key in step:
            yield from step[key]
            return
    yield step


def _normalizer_keeps(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return pattern is not None and len(step["content"]) >= len(pattern)
    return step["type"] in _KEEPING_NORMALIZERS


def _split_keeps(step: Mapping[str, Any]) -> bool:
    return step["type"] in _KEEPING_SPLITS and step.get("behavior") != "Removed"


def _dropped(tokenizer: Tokenizer, by_bytes: bool) -> str | None:
    """The characters of ASCII for which the vocabulary has no token; None: others may be dropped, too."""
    model = tokenizer.model
    if not isinstance(model, BPE):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if by_bytes:
        lacking = [byte for byte, character in _characters_of_bytes().items() if character not in vocabulary]
    elif model.byte_fallback:
        lacking = [byte for byte in range(_NUM_BYTES) if f"<0x{byte:02X}>" not in vocabulary]
    else:
        return None
    if any(byte in _CONTINUING for byte in lacking):
        return None
    return "".join(chr(byte) for byte in lacking if byte < _CONTINUING.start)


def _characters_of_bytes() -> Mapping[int, str]:
    """As GPT-2 has them: bytes that are printed stand for themselves, the others for characters from 256 on, in their order."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(_NUM_BYTES) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(_NUM_BYTES + at) for at, byte in enumerate(others)}
