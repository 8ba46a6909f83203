"""Errors in lines of a task file, by file and line; equal ones are one text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.errors import ConfigError

MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class LineError:
    """One error in one line."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


class TaskFileError(ConfigError):
    """The file has errors; `errors` contains up to 20. Nothing was written."""

    def __init__(self, errors: Sequence[LineError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(merged_errors(errors)))


def merged_errors(errors: Sequence[LineError]) -> Iterator[str]:
    """One text for each different error: its first line in full, then the numbers of the other lines that have it."""
    lines: dict[tuple[str, str], list[int]] = {}
    for error in errors:
        lines.setdefault((error.file, error.text), []).append(error.number)
    last = " (only the first errors are listed)" if len(errors) >= MAX_ERRORS else ""
    for (file, text), (first, *others) in lines.items():
        also = f"; so {'is line' if len(others) == 1 else 'are lines'} {_ranges(others)}{last}" if others else ""
        yield f"{LineError(file, first, text)}{also}"


def _ranges(numbers: Sequence[int]) -> str:
    """[2, 3, 4, 9] as "2 to 4, 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
