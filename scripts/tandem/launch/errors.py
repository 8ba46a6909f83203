"""Error lines of the children's logs, for the display: reported within a second, without repetitions.

An error line has level ERROR or higher. Lines that differ only in numbers and ids are equal; the tenth, hundredth, …
of them is reported with its count.
"""

import re
from pathlib import Path

from shared.outside_text import clipped

LINE = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:ERROR|CRITICAL) (\S+) (.*)$")
RAISED = re.compile(r"^[ |]*((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed|Died|Lost|Refused): .*)$")  # of a traceback
LAUNCHED = re.compile(r"^trainer\.launch: (rank \d+ .*)$")  # the last line of a failed trainer
TAIL_LINES = 40
VARYING = re.compile(r"\brecord=\S+|\d+")
MAX_CHARS = 600
MAX_BYTES = 1 << 18  # read of one log at once; of more, only the end
MAX_KINDS = 100


def raised(log: str) -> str:
    """What ended a process, from the end of its log: the last exception or error line there; empty without one.

    The last line of torch's launcher is the cause; the exception before it says only that a process of it failed.
    """
    lines = log.splitlines()[-TAIL_LINES:]
    errors = [text for text in map(_error_in, lines) if text]
    return clipped(errors[-1], MAX_CHARS) if errors else ""


def _error_in(line: str) -> str:
    match = RAISED.match(line)
    if match:
        return match[1]
    match = LAUNCHED.match(line)
    if match:
        return match[1]
    logged = LINE.match(line.encode())
    return logged[2].decode(errors="replace") if logged else ""


class Repeats:
    """Limits the reports of repeated texts."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Number of occurrences, including this one. 0: too many distinct texts to count."""
        kind = VARYING.sub("#", text)
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            return 0
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return self._counts[kind]

    def shown(self, text: str) -> str | None:
        """The text to report, with its count if repeated; None: no report."""
        count = self.count(text)
        if count > 1 and str(count).rstrip("0") == "1":
            return f"{text} ({count} times)"
        return text if count == 1 else None


class ErrorLines:
    """The errors in one log from `start` on."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._at = start

    def new(self) -> list[str]:
        """Error lines completed since the last call."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                self._at = max(self._at, size - MAX_BYTES)
                file.seek(self._at)
                text = file.read(MAX_BYTES)
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole) if whole or len(text) < MAX_BYTES else len(text)
        matches = (LINE.match(line) for line in whole.splitlines())
        return [clipped(match[2].decode(errors="replace"), MAX_CHARS) for match in matches if match]
