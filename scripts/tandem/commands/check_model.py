"""`tandem check-model`: whether a model can be trained and served, before anything runs."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from shared.processes.run_module import command

EXAMPLES = """Examples:

`tandem check-model models/Qwen3-4B`  its files, tensors, head, dtype, tokenizer, end-of-sequence tokens and chat template

`tandem check-model Qwen/Qwen3-4B`  the same of a model of the Hub
"""


def check_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Hugging Face directory, or a name of the Hub.")],
) -> None:
    """Print one table: what each part of the model is, what it must be, and what to do.

    Exit code 1 if the model cannot work. Needs no database; the names of the tensors are checked where torch is installed.
    """
    words = command("tandem.launch.check_model", str(model))
    raise typer.Exit(subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode)
