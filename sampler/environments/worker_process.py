"""One worker process, as its service sees it: requests by number, an end that every waiting request is told of.

ask ──line──▶ the process's stdin          stdout ──line──▶ the answer of request n
      └─ no answer within the time: the process is ended, since a session of it hangs: `WorkerLost`

The process has a guard (`shared.processes.guard`), so that what its worlds have started ends with it, and with the service.
`process` is the guard: it has the worker's pipes and its exit status, and ends all when `lifeline` is closed.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sampler.environments.environment import MAX_LINE_BYTES
from shared.processes import guard
from shared.processes.child import end_child
from shared.processes.guarded import MARK, end_marked, has_ended
from shared.processes.run_module import command

log = logging.getLogger(__name__)

CLOSE_S = 2.0  # from the end of its stdin, for a worker to close its worlds
END_S = guard.LEAVE_S + guard.KILL_S + 2.0  # for its guard to end all its processes


class WorkerLost(Exception):
    """The process has ended, or was ended because it hung: its sessions are gone."""


class WorldFailed(Exception):
    """An environment raised: its session is over."""


class WorldWrong(WorldFailed):
    """An environment returned what is no step: the same would happen again."""


class ServiceFull(Exception):
    """No room for one more session now: the client waits."""


class TaskNotOffered(Exception):
    """The environment does not have what the task names."""


class WorkerProcess:
    """`sessions`: those that it plays or is about to."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, mark: str) -> None:
        self.sessions: set[int] = set()
        self.why_lost: str | None = None
        self._process = process
        self._lifeline: int | None = lifeline
        self._mark = mark
        self._numbers = itertools.count(1)
        self._writing = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read(), name=f"environment worker {process.pid}")

    @classmethod
    async def started(cls, python: str, kinds: Mapping[str, str]) -> "WorkerProcess":
        """Raises OSError."""
        mark = uuid.uuid4().hex
        guards_end, lifeline = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(guard.__file__)), str(guards_end)),
                *(python or sys.executable, *command("sampler.environments.worker", json.dumps(dict(kinds)))[1:]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, MARK: mark, "PYTHONHASHSEED": "0"},  # sets have one order in all workers
                limit=MAX_LINE_BYTES,
                pass_fds=(guards_end,),
                start_new_session=True,  # a signal to the service's group must not end the worlds that it drains
            )
        except BaseException:  # cancelled too: closing the lifeline ends a guard that has started
            os.close(lifeline)
            raise
        finally:
            os.close(guards_end)
        return cls(process, lifeline, mark)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> None:
        await asyncio.shield(self._reading)

    async def ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:
        """Raises WorkerLost, WorldFailed, WorldWrong, TaskNotOffered, ServiceFull."""
        if self.why_lost is not None:
            raise WorkerLost(self.why_lost)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None, "it was made with pipes"
        try:
            message = {"n": number, "within_s": timeout_s, **request}
            async with asyncio.timeout(timeout_s):
                async with (
                    self._writing
                ):  # a busy worker reads no further request: those that wait are not in the pipe's buffer
                    await self._process.stdin.drain()
                    self._process.stdin.write(json.dumps(message).encode() + b"\n")
                return _result(await answer)
        except ConnectionError as exc:
            raise WorkerLost(self.why_lost or f"worker {self.pid} has closed its pipe") from exc
        except TimeoutError as exc:
            self._lose(f"worker {self.pid} did not answer {request['op']} within {timeout_s:g} s and was ended")
            raise WorkerLost(self.why_lost) from exc
        finally:
            self._waiting.pop(number, None)

    def post(self, request: Mapping[str, Any]) -> None:
        """Send a request whose answer does not matter."""
        if self.why_lost is None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"n": 0, **request}).encode() + b"\n")

    async def end(self) -> None:
        """Its worlds are closed first, if they are not busy."""
        self.why_lost = self.why_lost or "the service ends"
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait({self._reading}, timeout=CLOSE_S)
        self._lose(self.why_lost)
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None, "it was made with pipes"
        try:
            while line := await self._process.stdout.readline():
                answer = _answer_in(line)
                waiting = self._waiting.get(answer["n"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ValueError as exc:  # a line beyond the limit, or none of JSON: nothing after it can be trusted
            self._lose(f"worker {self.pid} answered something else than a line of JSON ({exc}) and was ended")
        finally:
            await self._end_processes()
            self._lose(f"worker {self.pid} has ended with status {self._process.returncode}")

    def _lose(self, why: str) -> None:
        if self.why_lost is None:
            self.why_lost = why
        self._close_lifeline()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerLost(self.why_lost))

    def _close_lifeline(self) -> None:
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    async def _end_processes(self) -> None:
        """The guard ends all that is left. If it was killed itself, they are found by their mark."""
        self._close_lifeline()
        if not await has_ended(self._process, END_S):
            log.warning("worker %d still has processes after SIGKILL", self.pid)
        await end_child(self._process)
        if self._process.returncode == -signal.SIGKILL:
            await asyncio.to_thread(end_marked, self._mark)


def _answer_in(line: bytes) -> Mapping[str, Any]:
    """Raises ValueError."""
    try:
        answer = json.loads(line)
    except RecursionError as exc:
        raise ValueError("it is nested too deep") from exc
    if not isinstance(answer, dict) or not isinstance(answer.get("n"), int):
        raise ValueError("expected an object with the request's number n")
    return answer


def _result(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        raise WorldFailed(answer["error"])
    if "wrong" in answer:
        raise WorldWrong(answer["wrong"])
    if "busy" in answer:
        raise ServiceFull(answer["busy"])
    if "refused" in answer:
        raise TaskNotOffered(answer["refused"])
    return answer["step"]


def least_loaded(workers: Sequence[WorkerProcess], most: int) -> WorkerProcess | None:
    """Of those that have room for one more session; None: all are full."""
    free = [worker for worker in workers if worker.why_lost is None and len(worker.sessions) < most]
    return min(free, key=lambda worker: len(worker.sessions), default=None)
