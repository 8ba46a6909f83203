"""Clients of `sampler.bundled_scorers.math_worker`: a few child processes, one request at a time each, restarted when they exit.

    a request ─▶ waits for a free worker: no time counts ─▶ its processor time is bounded ─▶ equal, not equal, or undecided

Promise: what an answer causes is decided: one that exceeds its processor time or memory, or ends the worker twice, is not equal
(on every machine). A reference answer that does so is `UnusableTask`. What the machine causes is `ScorerFailed`.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

from sampler.core.errors import ScorerFailed, UnusableTask
from sampler.core.time_limits import queued
from shared.processes.child import end_child
from shared.processes.out_of_memory import out_of_memory_kills
from shared.processes.run_module import command
from shared.processes.waits import Wait

log = logging.getLogger(__name__)

# Processor time is the real bound; this one covers a stalled machine: sympy's import alone takes 1–3 s of a core, and there may
# be only a fiftieth of one.
_WALL_S = 300.0
_WALL_FACTOR = 60
MOST_WORKERS = 4
_ARGUMENTS = tuple(command("sampler.bundled_scorers.math_worker")[1:])
_TRIES = 2  # of a request whose worker ended by itself
# Contains no secret: others can read a process's environment. The last one marks children of the launcher.
_INHERITED = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TMPDIR", "TANDEM_CHILD_OF")


class _WorkerEnded(Exception):
    """`on_answer`: it had read the reference answers."""

    def __init__(self, status: int, *, on_answer: bool) -> None:
        super().__init__(f"math worker ended with status {status} before it answered")
        self.status, self.on_answer = status, on_answer


class MathChecker:
    """The first requests start the children. They end with this process, when their standard input closes."""

    def __init__(self, cpu_s: float = 5.0, workers: int | None = None) -> None:
        self._cpu_s = cpu_s
        self._wall_s = max(_WALL_S, _WALL_FACTOR * cpu_s)
        self._most = workers or max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._workers: list[_Worker] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()

    async def equal(self, answer: str, accepted: list[str]) -> tuple[bool, str]:
        """Whether `answer` equals one of `accepted`, and why that could not be decided ("" if it was).

        Raises UnusableTask and ScorerFailed.
        """
        free = self._places()
        wait = Wait(
            "a worker of the scorer math", f"all {self._most} compare answers", "one ends, each within its limit"
        )
        async with queued(wait):  # each request before this one has its own bound, and so has this one
            worker = await free.get()
            try:
                return await self._decided(worker, answer, accepted)
            finally:
                free.put_nowait(worker)

    async def close(self) -> None:
        """End the children. The next requests start others."""
        for worker in self._workers:
            await worker.close()

    async def _decided(self, worker: "_Worker", answer: str, accepted: list[str]) -> tuple[bool, str]:
        request = {"answer": answer, "expected": accepted, "cpu_s": self._cpu_s}
        kills, ended = out_of_memory_kills(), None
        for _ in range(_TRIES):
            try:
                verdict = await worker.ask(request, self._wall_s)
            except _WorkerEnded as exc:
                ended = exc
                if exc.status == -signal.SIGXCPU:
                    break
            else:
                return self._read(verdict, accepted)
        assert ended is not None, "a worker that answers has returned"
        if ended.status == -signal.SIGKILL and out_of_memory_kills() != kills:
            raise ScorerFailed(f"{ended}: the machine lacked memory")
        why = (
            f"not decided within {self._cpu_s:g} s of processor time"
            if ended.status == -signal.SIGXCPU
            else f"not decided: it ended the checker {_TRIES} times (status {ended.status})"
        )
        if ended.on_answer:
            return False, why
        raise _unusable(accepted, why)

    def _read(self, verdict: dict[str, Any], accepted: list[str]) -> tuple[bool, str]:
        why = verdict.get("unusable")
        if why is not None:
            raise _unusable(accepted, str(why))
        return bool(verdict.get("equal", False)), str(verdict.get("undecided", ""))

    def _places(self) -> "asyncio.LifoQueue[_Worker]":
        """The most recently used first, so that few run. Processes belong to a loop; a second `asyncio.run` needs new ones."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._free = loop, asyncio.LifoQueue()
            self._workers = [_Worker() for _ in range(self._most)]
            for worker in reversed(self._workers):
                self._free.put_nowait(worker)
        return self._free


class _Worker:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, request: dict[str, Any], wall_s: float) -> dict[str, Any]:
        """Raises _WorkerEnded and ScorerFailed."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        on_answer = False
        try:
            async with asyncio.timeout(wall_s):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
                while line := await process.stdout.readline():
                    message: dict[str, Any] = json.loads(line)
                    if not message.get("read"):
                        return message
                    on_answer = True
                raise _WorkerEnded(await process.wait(), on_answer=on_answer)
        except ConnectionError as exc:
            raise _WorkerEnded(await process.wait(), on_answer=on_answer) from exc
        except (TimeoutError, OSError) as exc:
            await self.close()
            raise ScorerFailed(f"math worker: no answer within {wall_s:g} s: the machine stalls") from exc
        except asyncio.CancelledError:
            await self.close()  # its late reply would be taken for the next request's
            raise

    async def close(self) -> None:
        process, self._process = self._process, None
        await end_child(process)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            await self.close()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *_ARGUMENTS,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name in _INHERITED},
            )
        return self._process


def _unusable(accepted: list[str], why: str) -> UnusableTask:
    shown = ", ".join(repr(one if len(one) <= 100 else f"{one[:100]}…") for one in accepted)
    return UnusableTask(f"math: the task's answer {shown} cannot be compared with: {why}; expected another answer")
