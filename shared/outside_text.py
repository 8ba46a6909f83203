"""The rule for texts from outside (a tool, an engine, a judge, a scorer): whole characters only, and no longer than is useful.

Every message of a `TandemError` keeps it, so that what others wrote into one can always be logged and stored.
"""

MAX_ERROR_CHARS = 4000  # a task's document holds one for each slot; a record's and a dispatch's one more


def storable(text: str) -> str:
    """With U+FFFD for half of a surrogate pair, which JSON can spell and neither UTF-8 nor MongoDB can hold."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_of(body: bytes) -> str:
    """The body of an HTTP answer. Not its client's `.text`: a `charset` that names no encoding of texts (`hex`) would raise."""
    return body.decode("utf-8", "replace")


def clipped(text: str, max_chars: int) -> str:
    """Storable, and at most `max_chars`: of a longer text the beginning and the end."""
    if len(text) > max_chars:
        marker = f" [… {len(text) - max_chars} characters left out …] "
        room = max(0, max_chars - len(marker))
        text = text[: room - room // 4] + marker[: max_chars - room] + text[len(text) - room // 4 :]
    return storable(text)


def error_text(exc: BaseException, max_chars: int = MAX_ERROR_CHARS) -> str:
    """Kind and message, for a document or a log line."""
    return clipped(f"{type(exc).__name__}: {exc}", max_chars)
