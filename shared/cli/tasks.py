"""`tandem tasks import`: a task file into a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from shared.cli.connect import Connection, RunName, answer, console, with_store
from shared.errors import ConfigError
from shared.own_payload import load_payload_model
from shared.store import Store
from shared.task_files import ImportResult, Target, import_task_file

EXAMPLES = """Examples:

`tandem tasks import demo train.jsonl`  the training tasks, eight episodes each

`tandem tasks import demo train.jsonl --epochs 3`  three times over, as epochs 0, 1 and 2

`tandem tasks import grid train.jsonl --payload_model assets.gridworld.world:GridTask`  checking a custom sampler's metadata

`tandem tasks import demo eval.jsonl --split eval --num_generations 1`  what evaluation plays
"""

app = typer.Typer(help="The tasks of a run.", no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def group() -> None:
    """The tasks of a run."""


@app.command("import", epilog=EXAMPLES)
def import_(
    run: RunName,
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="One task on a line.")],
    split: Annotated[str, typer.Option("--split", help="Which tasks these are: train, eval, or a name of yours.")] = (
        "train"
    ),
    policy: Annotated[str, typer.Option("--policy", help="The policy that plays them.")] = "main",
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Import the file this often, one epoch each.")] = 1,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Import it once, as this epoch.")] = None,
    num_generations: Annotated[
        int, typer.Option("--num_generations", min=1, help="Episodes per task: the size of its group.")
    ] = 8,
    at_version: Annotated[
        int | None, typer.Option("--at_version", min=0, help="Only engines that serve this policy version play them.")
    ] = None,
    payload_model: Annotated[
        str | None,
        typer.Option(
            "--payload_model",
            metavar="MODULE:CLASS",
            help="A pydantic model that every line's metadata must fit, such as a custom sampler's own.",
        ),
    ] = None,
    db_connection_string: Connection = None,
) -> None:
    """Check a task file and import it.

    Each line is an object: **id** and **query**, and as you need them **answer**, **scorer**, **answer_schema**
    ("answer" or "boxed"), **tools**, **system**, **metadata**, **source**.

    The whole file is checked before anything is written. Importing again changes nothing: tasks that are there with the
    same content stay, and an import that was killed goes on where it ended. A task that is there with other content is
    an error. Tasks are opened in the order of the file, after those imported before.
    """
    if epoch is not None and epochs != 1:
        answer(_refuse("--epoch and --epochs exclude each other: one epoch by number, or several from 0 on"))
    chosen = range(epochs) if epoch is None else (epoch,)

    async def work(store: Store) -> ImportResult:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it: the model is the user's own
        model = None if payload_model is None else load_payload_model(payload_model)
        target = Target(split, policy, chosen, num_generations, at_version, model)
        with _bars() as progress:
            bars: dict[str, TaskID] = {}

            def report(phase: str, done: int, total: int) -> None:
                if phase not in bars:
                    bars[phase] = progress.add_task(phase, total=total)
                progress.update(bars[phase], completed=done)

            return await import_task_file(store, file, target, report)

    result = with_store(db_connection_string, run, work, must_exist=False)
    console().print(
        f"run {run}, split {split}: {result.inserted} inserted, {result.unchanged} unchanged", soft_wrap=True
    )


async def _refuse(text: str) -> None:
    raise ConfigError(text)


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console()
    )
