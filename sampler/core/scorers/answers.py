"""Extracts the answer from a reply's text by the task's `answer_schema`: the last nonblank one, or None.

answer    <answer>…</answer>
boxed     \\boxed{…} or \\fbox{…}, braces nested
"""

import re
from collections.abc import Callable

from shared.errors import ConfigError

_OPEN, _CLOSE = "<answer>", "</answer>"
_BOX_PARTS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def extract_answer(text: str, schema: str) -> str | None:
    """None if there is no answer, or only blank ones. Linear in the length of `text`. Raises ConfigError."""
    if schema not in ANSWER_SCHEMAS:
        raise ConfigError(f"answer_schema is {schema!r}; expected {' or '.join(map(repr, ANSWER_SCHEMAS))}")
    extracted = ANSWER_SCHEMAS[schema](text)
    return None if extracted is None else extracted.strip()


def _tagged(text: str) -> str | None:
    start = len(text)
    while (end := text.rfind(_CLOSE, 0, start)) >= 0 and (start := text.rfind(_OPEN, 0, end)) >= 0:
        if (answer := text[start + len(_OPEN) : end]).strip():
            return answer
    return None


def _boxed(text: str) -> str | None:
    """The box that opens last among the nonblank ones whose braces balance."""
    open_braces: list[tuple[int, bool]] = []  # start of the content, and whether a box opened it
    best: tuple[int, int] | None = None
    for match in _BOX_PARTS.finditer(text):
        token = match.group()
        if token == "}":
            if not open_braces:
                continue
            start, is_box = open_braces.pop()
            if is_box and (best is None or start > best[0]) and text[start : match.start()].strip():
                best = (start, match.start())
        elif token.endswith("{") and token != "\\{":
            open_braces.append((match.end(), token != "{"))
    return text[best[0] : best[1]] if best else None


ANSWER_SCHEMAS: dict[str, Callable[[str], str | None]] = {"answer": _tagged, "boxed": _boxed}
