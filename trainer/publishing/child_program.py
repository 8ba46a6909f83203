"""A child process of the trainer that answers requests, one line of JSON each: no peer can block or crash the trainer."""

import asyncio
import json
import os
from typing import Any

from shared.processes.child import end_child
from shared.processes.run_module import command

START_S = 120.0  # importing torch takes long on a busy machine
LINE_BYTES = 1 << 16


class ChildFailed(Exception):
    """The child answered with an error, exited, or exceeded its limit; it has been ended."""


class ChildProgram:
    """`module`: its program, which writes a line when it is ready. Started on demand, and again after it exited."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: asyncio.subprocess.Process | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def call(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Return its answer. Raises ChildFailed after ending the child."""
        process = await self._running()
        try:
            assert process.stdin is not None, "piped"
            process.stdin.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(limit_s):
                await process.stdin.drain()
                answer = await _line(process)
        except (TimeoutError, OSError) as exc:
            await self.kill()
            raise ChildFailed(
                f"{self._module} did not answer within {limit_s:g} s: {type(exc).__name__} {exc}"
            ) from exc
        except ChildFailed:
            await self.kill()
            raise
        if "error" in answer:
            await self.kill()
            raise ChildFailed(str(answer["error"]))
        return answer

    async def kill(self) -> None:
        process, self._process = self._process, None
        await end_child(process)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self.runs:
            return self._process
        await self.kill()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command(self._module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            async with asyncio.timeout(START_S):
                await _line(self._process)
        except (TimeoutError, OSError, ChildFailed) as exc:
            await self.kill()
            raise ChildFailed(f"{self._module} did not start within {START_S:g} s: {type(exc).__name__} {exc}") from exc
        return self._process


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None, "piped"
    line = await process.stdout.readline()
    if not line:
        raise ChildFailed("it ended")
    answer: dict[str, Any] = json.loads(line)
    return answer
