"""`python -m sampler`, counting its commands to the collections of episodes: they stand in the file COMMANDS_FILE when it ends.

What the clock sends (workers, engines, the run's state) is not counted: it does not depend on the work.
"""

import atexit
import os
from pathlib import Path

from pymongo import monitoring

from sampler.__main__ import main
from shared.processes.interrupt import run_command

COLLECTIONS = ("tasks", "records", "dispatched_sampling_tasks", "record_data")
COMMANDS_FILE = "COMMANDS_FILE"
COUNTED = ("find", "update", "findAndModify", "insert", "aggregate")


class CommandCount(monitoring.CommandListener):
    """Of every client of this process."""

    def __init__(self) -> None:
        self.count = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.count += event.command_name in COUNTED and event.command[event.command_name] in COLLECTIONS

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


if __name__ == "__main__":
    path, commands = Path(os.environ[COMMANDS_FILE]), CommandCount()
    monitoring.register(commands)
    atexit.register(lambda: path.write_text(str(commands.count)))
    run_command(main)
