"""`--dry-run`: prints what a launch would start on this machine, with the variables of every process, and starts nothing."""

import os
import shlex
from collections.abc import Sequence
from typing import cast

from rich.console import Console

from shared.processes.mongod import Mongod
from shared.redaction import redacted, shown
from tandem.launch import commands
from tandem.launch.children import Child, Program
from tandem.launch.nodes import place_lines
from tandem.launch.places import ROOT, as_shown
from tandem.launch.placing import gpu_lines
from tandem.launch.services import (
    memory_lines,
    start_bundled_tools,
    start_environment_service,
    start_keepers,
    start_samplers,
    start_trainers,
)
from tandem.launch.settings import BUNDLED, LaunchConfig
from tandem.launch.task_checks import check_tasks, check_truncation

TOOLS_URL = "http://127.0.0.1:0/mcp"  # the bundled server prints its port when it starts
DATABASE = "mongodb://127.0.0.1:0/?directConnection=true"


class Planned:
    """Prints children where `Children` starts them."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, program: Program) -> Child:
        self.say(f"{program.name}, log {as_shown(program.log_path)}")
        usual = commands.environment()
        for variable, value in program.environment.items():
            if usual.get(variable) != value:
                self.say(f"    {variable}={shown(value) if '://' in value else value}")
        self.say(f"    {redacted(shlex.join(program.command))}")
        return cast(Child, None)  # there is none; nothing below asks it

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def show(console: Console, policies: Sequence[LaunchConfig]) -> int:
    """Print the plan of this machine; returns the exit status. Raises ConfigError for tasks that could not be played."""
    config, planned = policies[0], Planned(console)
    for line in [
        *place_lines(config.machines, config.derived, config.address),
        *gpu_lines(policies),
        *memory_lines(policies),
    ]:
        planned.say(line)
    if config.machines.is_main:
        check_truncation(policies)
        check_tasks(config, planned.say)
    if config.db_connection_string:
        planned.say(f"MongoDB: {shown(config.db_connection_string)}, given")
    else:
        server = Mongod(config.folder / "mongodb")
        planned.say(f"mongod, data {as_shown(server.folder)}")
    database = config.db_connection_string or DATABASE
    tools = config.tools
    if tools == BUNDLED:
        tools = TOOLS_URL if config.num_samplers else None
        if tools:
            start_bundled_tools(config, planned)
    elif tools:
        planned.say(f"tools: {redacted(tools)}, given")
    start_environment_service(config, planned, database)
    start_keepers(policies, planned, database)
    start_samplers(policies, planned, database, tools)
    if not config.only_evaluate:
        start_trainers(policies, planned, database)
    planned.say(f"nothing was started (--dry-run); the working directory is {os.path.relpath(ROOT)}")
    return 0
