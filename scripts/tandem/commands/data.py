"""`tandem data`: export a run's training data to a file, import it from a file, restore a whole run from its archive."""

from pathlib import Path
from typing import Annotated

import typer

from shared.names import DEFAULT_POLICY
from shared.store.archive import restore_run
from shared.store.data_file import export_data, import_data
from tandem.commands.connect import Connection, RunName, console, with_store

app = typer.Typer(
    help="Export and import a run's training data as a file.", no_args_is_help=True, rich_markup_mode="markdown"
)
File = Annotated[Path, typer.Argument(metavar="FILE", help="For example demo.bson.gz.")]


@app.command("export", epilog="Example:  `tandem data export demo demo.bson.gz`")
def export(
    run: RunName,
    file: File,
    policy: Annotated[str, typer.Option("--policy", help="The policy whose data is exported.")] = DEFAULT_POLICY,
    db_connection_string: Connection = None,
) -> None:
    """Write the settled groups of a run: tasks, records, dispatches and training data, without training marks."""
    groups = with_store(db_connection_string, run, lambda store: export_data(store, file, policy), read_only=True)
    console().print(f"{file}: {groups} groups of run {run}, {file.stat().st_size:,} bytes", soft_wrap=True)


@app.command(
    "import", epilog="Example:  `tandem data import recorded demo.bson.gz`, then train with `--data_run recorded`"
)
def import_(run: RunName, file: File, db_connection_string: Connection = None) -> None:
    """Import a file's groups into a run, for offline training: `python -m trainer --run NEW --data_run RUN`.

    The whole file is checked before the first write. Repeating the import changes nothing.
    """
    groups = with_store(db_connection_string, run, lambda store: import_data(store, file), must_exist=False)
    console().print(f"run {run}: {groups} groups of {file}", soft_wrap=True)


@app.command("restore", epilog="Example:  `tandem data restore demo archive/demo.bson.gz`")
def restore(run: RunName, file: File, db_connection_string: Connection = None) -> None:
    """Write the whole run of an archive (`tandem gc --archive`) into a new run, for every command that looks at one.

    The whole file is checked before the first write. What an interrupted restoration left is completed by the same command.
    """
    counts = with_store(db_connection_string, run, lambda store: restore_run(store, file), must_exist=False)
    console().print(f"run {run}: {sum(counts.values()):,} documents of {file}", soft_wrap=True)
