"""Makes external text (of a tool, an engine, a judge, a scorer) storable: whole characters only, and of bounded length.

Every message of a `TandemError` passes through it, so that quoted external text can always be logged and stored.
"""

import re

# Control characters but tab and line feed; and what turns the direction of text round or hides: bidirectional, zero-width ones,
# and tags, which spell whole sentences that a model reads and a person does not see.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
MAX_ERROR_CHARS = 4000  # a task's document contains one for each slot, a record and a dispatch one each


def storable(text: str) -> str:
    """Replace lone surrogates by U+FFFD: JSON can express them, UTF-8 and MongoDB cannot."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def visible(text: str) -> str:
    """Text for a terminal or a page: what would steer it, or could not be seen, is written as an escape (`\\x1b`)."""
    return UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)


def text_of(body: bytes) -> str:
    """The body of an HTTP answer as text. The client's `.text` would raise for a `charset` that is no text encoding (`hex`)."""
    return body.decode("utf-8", "replace")


def clipped(text: str, max_chars: int) -> str:
    """Storable text of at most `max_chars`: a longer text keeps its beginning and end."""
    if len(text) > max_chars:
        marker = f" [… {len(text) - max_chars} characters left out …] "
        room = max(0, max_chars - len(marker))
        text = text[: room - room // 4] + marker[: max_chars - room] + text[len(text) - room // 4 :]
    return storable(text)


def error_text(exc: BaseException, max_chars: int = MAX_ERROR_CHARS) -> str:
    """Type and message, for a document or a log line; also of an error whose own text raises."""
    try:
        text = str(exc)
    except Exception as failure:  # noqa: BLE001 - another's `__str__` may raise anything, and an error is still an error
        text = f"(its text raises {type(failure).__name__})"
    return clipped(f"{type(exc).__name__}: {text}", max_chars)
