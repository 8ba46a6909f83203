"""Client of `sampler.scorers.math_worker`: one child process, one request at a time, restarted when it exits.

Promise: `equal` returns in bounded time. An answer that exceeds its processor time or memory is not equal (the answer
causes that, the same on every machine); a worker that exits or stalls for another reason is `ScorerFailed`.
"""

import asyncio
import json
import os
import signal
import sys

from sampler.errors import ScorerFailed
from shared.processes.child import end_child

# Processor time is the real bound; this one covers a stalled machine: sympy's import alone takes 1–3 s of a core, and there may
# be only a tenth of one.
_WALL_S = 60.0
_WALL_FACTOR = 12
# Contains no secret: others can read a process's environment. The last one marks children of the launcher.
_INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TMPDIR", "TANDEM_CHILD_OF")


class MathChecker:
    """The first request starts the child. It ends with this process, when its standard input closes."""

    def __init__(self, cpu_s: float = 5.0) -> None:
        self._cpu_s = cpu_s
        self._wall_s = max(_WALL_S, _WALL_FACTOR * cpu_s)
        self._process: asyncio.subprocess.Process | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: asyncio.Lock | None = None

    async def equal(self, answer: str, accepted: list[str]) -> tuple[bool, str]:
        """Whether `answer` equals one of `accepted`, and why that could not be decided ("" if it was)."""
        request = json.dumps({"answer": answer, "expected": accepted, "cpu_s": self._cpu_s}) + "\n"
        async with self._lock():
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                async with asyncio.timeout(self._wall_s):
                    process.stdin.write(request.encode())
                    await process.stdin.drain()
                    line = await process.stdout.readline()
                    code = None if line else await process.wait()
            except (TimeoutError, OSError) as exc:
                await self.close()
                raise ScorerFailed(f"math worker: no answer within {self._wall_s:g} s") from exc
            except asyncio.CancelledError:
                await self.close()  # its late reply would be taken for the next request's
                raise
        return self._outcome(line, code)

    async def close(self) -> None:
        """End the child. The next request starts another."""
        process, self._process = self._process, None
        await end_child(process)

    def _outcome(self, line: bytes, code: int | None) -> tuple[bool, str]:
        if code == -signal.SIGXCPU:
            return False, f"not decided within {self._cpu_s:g} s of processor time"
        if code is not None:
            raise ScorerFailed(f"math worker ended with status {code} before it answered")
        found = json.loads(line)
        return bool(found.get("equal", False)), str(found.get("undecided", ""))

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            await self.close()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sampler.scorers.math_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name in _INHERITED},
            )
        return self._process

    def _lock(self) -> asyncio.Lock:
        """Locks and processes belong to a loop; a second `asyncio.run` in one process needs new ones."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._turn is None:
            self._loop, self._turn, self._process = loop, asyncio.Lock(), None
        return self._turn
