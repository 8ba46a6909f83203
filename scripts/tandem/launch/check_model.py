"""Prints the table of `model_check.py`: `python -m tandem.launch.check_model MODEL`. Exit status 1 if a row failed."""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared.files.hub import model_folder
from shared.outside_console import OutsideConsole
from tandem.launch.model_check import CheckState, ModelCheck, check_model, failures

STYLES = {CheckState.OK: "green", CheckState.NOTE: "yellow", CheckState.FAILED: "red", CheckState.UNKNOWN: "yellow"}


def main() -> int:
    name = Path(sys.argv[1])
    logging.basicConfig(level=logging.ERROR)
    try:
        folder = model_folder(name)
    except ValueError as exc:
        sys.stderr.write(f"tandem check-model: {exc}\n")
        return 2
    rows = check_model(folder)
    show(OutsideConsole(), rows, str(name))
    failed = failures(rows)
    if failed:
        sys.stdout.flush()
        sys.stderr.write(f"{name}: {failed[0].name}: {failed[0].found}\n")
        return 1
    return 0


def show(console: Console, rows: Sequence[ModelCheck], title: str) -> None:
    """One line for each check."""
    table = Table("check", "", "found", "expected", "what to do", title=escape(title), title_justify="left")
    for row in rows:
        verdict = f"[{STYLES[row.verdict]}]{row.verdict}[/]"
        table.add_row(row.name, verdict, escape(row.found), escape(row.expected), escape(row.remedy))
    console.print(table)


if __name__ == "__main__":
    run_command(main)
