"""Runs a service's program for a command of `tandem` that needs more than the base installs: an engine's client, or torch.

No command imports a service. The child shares the terminal; its exit status is the command's. The connection string is passed
in the environment, since every user of the machine reads a command line.
"""

import os
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal, NoReturn

import typer

from shared.configuration.secrets import DATABASE_VARIABLE, FILE_SUFFIX
from shared.errors import ConfigError
from shared.processes.run_module import command
from tandem.commands.connect import USAGE, complain, connection_string

Extra = Literal["trainer", "sampler"]
NEEDED: dict[Extra, str] = {"trainer": "torch", "sampler": "httpx"}  # a package of each


def run_program(module: str, arguments: Sequence[str], *, extra: Extra, run: str, connection: str | None) -> NoReturn:
    """Run `python -m MODULE`, which needs the packages of `extra`, and exit as it does."""
    if find_spec(NEEDED[extra]) is None:
        complain(f"this needs the packages of the {extra}: pip install 'tandem-rl[{extra}]'")
        raise typer.Exit(USAGE)
    try:
        uri = connection_string(connection, run)
    except ConfigError as exc:
        complain(str(exc))
        raise typer.Exit(USAGE) from exc
    environment = {name: value for name, value in os.environ.items() if name != DATABASE_VARIABLE + FILE_SUFFIX}
    words = command(module, *arguments)
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment | {DATABASE_VARIABLE: uri}) as child:
        while (status := _waited(child)) is None:
            pass
    raise typer.Exit(status if status >= 0 else 128 - status)


def _waited(child: subprocess.Popen[bytes]) -> int | None:
    """None after Ctrl-C: the child has heard it too, ends cleanly, and has the last word."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        return None
