"""An engine as a child process: started on a free port, stopped by pid.

The engine is given as a command line with the placeholders {model}, {host} and {port}, and {api_key} if it shall require one;
without a command it is the local engine.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

from sampler.engine.keeper.config import LOOPBACK
from shared.processes import bound
from shared.processes.mongod import free_port

STOP_S = 10.0
BOUND = str(Path(bound.__file__))
LOCAL = (
    sys.executable,
    "-m",
    "sampler.engine.local",
    "--model-path",
    "{model}",
    "--host",
    "{host}",
    "--port",
    "{port}",
)


def command_line(
    template: str | None, model: Path, port: int, api_key: str | None = None, host: str = LOOPBACK
) -> list[str]:
    """Split `template` into words as a shell would, then fill it in, so that a path with blanks stays one word."""
    words = list(LOCAL) if template is None else shlex.split(template)
    places = {"{model}": str(model), "{host}": host, "{port}": str(port), "{api_key}": api_key or ""}
    for place, value in places.items():
        words = [word.replace(place, value) for word in words]
    return words


class EngineChild:
    """One engine over `model`. It inherits its parent's output streams and process group."""

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
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

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
        prefix = (sys.executable, "-I", "-S", BOUND, str(os.getpid()))
        self._process = await asyncio.create_subprocess_exec(*prefix, *self._command, stdin=asyncio.subprocess.DEVNULL)

    async def kill(self) -> None:
        """End an engine that does not answer."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL, to the engine and its descendants; returns when it has ended."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            # SGLang's own processes ask the kernel to end with their parent, but not in their first seconds.
            for pid in (*_descendants(self._process.pid), self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await self._process.wait()


def _descendants(pid: int) -> list[int]:
    """Children before their parents; empty if the kernel does not list them."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [found for child in children for found in (*_descendants(child), child)]
