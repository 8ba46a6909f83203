"""Texts of megabytes on a terminal: their beginning and end, with the option that prints all."""

from contextvars import ContextVar

MOST_CHARS = 20_000  # of one text
prints_whole: ContextVar[bool] = ContextVar("prints_whole", default=False)  # of this command


def readable(text: str) -> str:
    if prints_whole.get() or len(text) <= MOST_CHARS:
        return text
    half = MOST_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out; --whole prints them …]\n{text[-half:]}"
