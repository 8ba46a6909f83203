"""An engine as a child process: started on a free port, stopped by pid.

    keeper ──lifeline──▶ bound (a guard) ──▶ engine ──▶ its own processes

The engine counts as ended when none of its processes is left, since each may hold memory of a device. They also end if the keeper
is killed. If the guard itself is killed, the engine ends with it, and the rest is known by `note`.

The engine is given as a command line with the placeholders {model}, {host} and {port}, and {api_key} if it shall require one;
without a command it is the local engine.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from sampler.engine.keeper.config import LOOPBACK
from shared.http.listening import in_url
from shared.names import bare_host
from shared.processes import bound
from shared.processes.guard import descendants
from shared.processes.mongod import free_port
from shared.processes.run_module import command

log = logging.getLogger(__name__)

STOP_S = 10.0
SWEEP_S = 0.05
SWEEPS_TO_TELL = 600
BOUND = str(Path(bound.__file__))
LOCAL = (
    *command("sampler.engine.local"),
    "--model-path",
    "{model}",
    "--host",
    "{host}",
    "--port",
    "{port}",
    "--weight-version",
    "0",
)


def local_command(flags: Sequence[str]) -> str:
    """The local engine's, with these flags of its size."""
    return shlex.join([*LOCAL, *flags])


def command_line(
    template: str | None, model: Path, port: int, api_key: str | None = None, host: str = LOOPBACK
) -> list[str]:
    """Split `template` into words as a shell would, then fill it in, so that a path with blanks stays one word."""
    words = list(LOCAL) if template is None else shlex.split(template)
    places = {"{model}": str(model), "{host}": bare_host(host), "{port}": str(port), "{api_key}": api_key or ""}
    for place, value in places.items():
        words = [word.replace(place, value) for word in words]
    return words


class EngineChild:
    """One engine over `model`. It inherits its parent's output streams."""

    def __init__(
        self,
        model: Path,
        template: str | None = None,
        port: int = 0,
        api_key: str | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self._host, self._port = host, port or free_port()
        self._command = command_line(template, model, self._port, api_key, host)
        self._process: asyncio.subprocess.Process | None = None  # the guard: it has the engine's exit status
        self._lifeline = -1
        self._noted: dict[int, int] = {}  # start time by pid

    @property
    def url(self) -> str:
        return f"http://{in_url(self._host)}:{self._port}"

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def status(self) -> int | None:
        """Exit status, None while running."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Raises OSError if the command does not exist. The engine ends with this process, also if that is killed."""
        if shutil.which(self._command[0]) is None:
            raise FileNotFoundError(f"no such program: {self._command[0]}")
        self._noted = {}
        guards_end, self._lifeline = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", BOUND, str(guards_end), *self._command),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # so that a signal to the keeper's group does not end the guard
                pass_fds=(guards_end,),
            )
        except BaseException:  # cancelled too: closing the lifeline ends a guard that has started
            self._close_lifeline()
            raise
        finally:
            os.close(guards_end)

    def note(self) -> None:
        """Once the engine answers: remember its processes, in case that the guard is killed."""
        if self._process is not None:
            self._noted = _with_start_times(descendants(self._process.pid))

    async def kill(self) -> None:
        """End an engine that does not answer; returns when none of its processes is left."""
        if self._process is None:
            return
        if self._process.returncode is None:
            for pid in [*descendants(self._process.pid)] or [self._process.pid]:
                _signal(pid, signal.SIGKILL)
            await self._process.wait()
        self._close_lifeline()
        await _sweep(self._noted)

    async def stop(self) -> None:
        """Send SIGTERM to the engine, then SIGKILL to all its processes; returns when none is left."""
        if self._process is not None and self._process.returncode is None:
            _signal(next(descendants(self._process.pid), self._process.pid), signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
        await self.kill()

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _sweep(noted: dict[int, int]) -> None:
    """Kill what a killed guard left, until none is left: while one is, its memory may be allocated."""
    sweeps = 0
    while alive := [pid for pid, started in noted.items() if _start_time(pid) == started]:
        for pid in alive:
            noted |= _with_start_times(descendants(pid))
            _signal(pid, signal.SIGKILL)
        sweeps += 1
        if sweeps % SWEEPS_TO_TELL == 0:
            log.warning("processes of the engine do not end pids=%s", ",".join(map(str, alive)))
        await asyncio.sleep(SWEEP_S)  # they are not our children, so there is no exit to wait for


def _with_start_times(pids: Iterable[int]) -> dict[int, int]:
    return {pid: started for pid in pids if (started := _start_time(pid)) is not None}


def _start_time(pid: int) -> int | None:
    """In ticks since boot, by which a recycled pid is known; None if there is no such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
