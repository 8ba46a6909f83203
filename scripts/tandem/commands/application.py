"""Every command of `tandem`, each in a file of its own, which is loaded when its command is called."""

import importlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Annotated

import typer

from tandem.commands import programs

COMMANDS = {  # {command: (module of this package, its function, its examples)}
    "status": ("status", "status", "EXAMPLES"),
    "runs": ("runs", "runs", "EXAMPLES"),
    "tail": ("tail", "tail", "EXAMPLES"),
    "gc": ("runs", "gc", "GC_EXAMPLES"),
    "pause": ("pausing", "pause", "EXAMPLES"),
    "resume": ("pausing", "resume", "EXAMPLES"),
    "note": ("note", "note", "EXAMPLES"),
    "rules": ("rules", "rules", "EXAMPLES"),
    "feedback": ("feedback", "feedback", "EXAMPLES"),
    "show": ("show", "show", "EXAMPLES"),
    "eval": ("evaluation", "evaluation", "EXAMPLES"),
    "league": ("league", "league", "EXAMPLES"),
    "audit": ("audit", "audit_run", "EXAMPLES"),
    "replay": ("what_if", "replay", "REPLAY_EXAMPLES"),
    "resettle": ("what_if", "resettle", "RESETTLE_EXAMPLES"),
    "bisect": ("what_if", "bisect", "BISECT_EXAMPLES"),
    "fork": ("fork", "fork", "EXAMPLES"),
    "export-model": ("export", "export_model", "EXAMPLES"),
    "check-model": ("check_model", "check_model", "EXAMPLES"),
    "health": ("health", "health", "EXAMPLE"),
    "metrics": ("metrics", "metrics", "EXAMPLES"),
    "view": ("view", "view", "EXAMPLES"),
    "mongod": ("server", "mongod", "EXAMPLES"),
}
GROUPS = {  # {command with commands of its own: (module of this package, its application)}
    "tasks": ("tasks", "app"),
    "data": ("data", "app"),
    "database": ("database", "app"),
    "trace": ("trace", "traces"),
}
EVERY = (*GROUPS, *COMMANDS, *programs.PROGRAMS)


def application_for(arguments: Sequence[str]) -> typer.Typer:
    """`tandem` with the command that the first of `arguments` names, since loading all takes half a second; else with all."""
    return application([arguments[0]] if arguments and arguments[0] in EVERY else EVERY)


def application(names: Sequence[str]) -> typer.Typer:
    """`tandem` with these commands."""
    app = typer.Typer(
        name="tandem",
        help="Manage runs of Tandem. Every RUN is one MongoDB database, which each command reads or fills.",
        epilog="Start here:  `tandem mongod`,  then  `tandem tasks import demo train.jsonl`,  then  `tandem status demo`.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_of_all_commands)
    for name in names:
        if name in COMMANDS:
            file, function, examples = COMMANDS[name]
            module = _module(file)
            app.command(name, epilog=getattr(module, examples))(getattr(module, function))
        elif name in GROUPS:
            file, group = GROUPS[name]
            app.add_typer(getattr(_module(file), group), name=name)
        else:
            programs.add_to(app, name)
    return app


def _module(file: str) -> ModuleType:
    return importlib.import_module(f"tandem.commands.{file}")


def _print_version(requested: bool) -> None:
    if requested:
        try:
            typer.echo(f"tandem {version('tandem-rl')}")
        except PackageNotFoundError:
            typer.echo("tandem, of sources that are not installed")
        raise typer.Exit


def _of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Manage runs of Tandem. Every RUN is one MongoDB database, which each command reads or fills."""
