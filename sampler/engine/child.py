"""The local engine as a child process: started on a free port, stopped by pid."""

import asyncio
import signal
import sys
from pathlib import Path

from shared.mongod import free_port

STOP_S = 10.0


class EngineChild:
    """`python -m sampler.engine.local` over `model`. What it prints goes where its parent prints."""

    def __init__(self, model: Path, port: int = 0) -> None:
        self._model = model
        self._port = port or free_port()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "sampler.engine.local", "--model-path", str(self._model), "--port", str(self._port)),
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when it has ended."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
