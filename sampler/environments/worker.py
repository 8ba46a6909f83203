"""One worker process: plays sessions of environments, and answers requests in lines of JSON over its standard streams.

    service ──{"n": 1, "op": "start", "session": "7", "kind": "lake", "index": 3, "task": {}}──▶ stdin
            ◀──{"n": 1, "step": {…}} | {"n": 1, "refused": "…"} | {"n": 1, "error": "…"}──────── stdout

Standard library only, and no module of Tandem's outside of this package's worker side: it runs in any virtual environment
(`worker_python`). What an environment prints goes to stderr. It ends with the service, also if that is killed.

    python -m sampler.environments.worker '{"lake": "gymnasium:FrozenLake-v1"}'
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from sampler.environments.adapters import environment_class
from sampler.environments.checked_step import WrongStep, checked
from sampler.environments.environment import MAX_LINE_BYTES, Environment, NoRoom, TaskRefused
from sampler.environments.own_random import OwnRandom

MAX_THREADS = 64
MAX_ERROR_CHARS = 500
MAX_DIGITS = 100_000  # of a number in a reply: games of TextArena fail at Python's bound, 4,300, which weak models pass
_PDEATHSIG = 1  # of prctl(2)


class WorldPlayer:
    """`kinds`: {name: what provides it}."""

    def __init__(self, kinds: Mapping[str, str], answers: BinaryIO) -> None:
        self._kinds = kinds
        self._answers = answers
        self._writing = threading.Lock()
        self._classes: dict[str, tuple[type[Environment], str]] = {}
        self._sessions: dict[str, Environment] = {}
        self._random: dict[str, OwnRandom] = {}
        self._threads: ThreadPoolExecutor | None = None

    def serve(self, requests: BinaryIO) -> None:
        """Until the pipe closes. Then the sessions that are left are closed."""
        for line in requests:
            request = json.loads(line)
            if self._is_threaded(request):
                self._threads = self._threads or ThreadPoolExecutor(MAX_THREADS)
                self._threads.submit(self._answer, request)
            else:
                self._answer(request)
        for session in list(self._sessions):
            self._close(session)

    def _is_threaded(self, request: Mapping[str, Any]) -> bool:
        if request["op"] == "start":
            with contextlib.suppress(BaseException):  # the request itself meets the same error, and tells it
                return self._class_of(request["kind"])[0].in_threads
            return False
        session = self._sessions.get(request.get("session", ""))
        return session is not None and session.in_threads

    def _answer(self, request: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"n": request["n"]}
        try:
            answer["step"] = self._done(request)
            text = json.dumps(answer)
            if len(text) >= MAX_LINE_BYTES:
                raise ValueError(f"the step has {len(text)} bytes of JSON; expected less than {MAX_LINE_BYTES}")
        except TaskRefused as exc:
            text = json.dumps({**answer, "step": None, "refused": _shown(exc)})
        except NoRoom as exc:
            text = json.dumps({"n": request["n"], "busy": _shown(exc)})
        except WrongStep as exc:
            world = request.get("kind") or type(self._sessions.get(request.get("session", ""))).__name__
            text = json.dumps({"n": request["n"], "wrong": f"{world} returned what is no step: {_shown(exc)}"})
        except BaseException as exc:  # noqa: BLE001 - foreign code, also its sys.exit(): the session's failure, not the worker's
            text = json.dumps({"n": request["n"], "error": f"{type(exc).__name__}: {_shown(exc)}{_place(exc)}"})
        with self._writing:
            self._answers.write(text.encode() + b"\n")
            self._answers.flush()

    def _done(self, request: Mapping[str, Any]) -> Any:
        op, session = request["op"], request.get("session", "")
        if op == "start":
            return self._started(session, request)
        if op == "interact":
            environment = self._sessions[session]
            environment.within_s = request["within_s"]
            with self._drawn(session):
                step = environment.interact(request["messages"])
            return self._stepped(session, step)
        if op == "close":
            self._close(session)
            return None
        kind, name = self._class_of(request["kind"])
        return list(kind.indices(name))

    def _started(self, session: str, request: Mapping[str, Any]) -> dict[str, Any]:
        kind, name = self._class_of(request["kind"])
        if not kind.in_threads:  # its calls run at the same time as others, which draw from the same generators
            self._random[session] = OwnRandom(request["index"])
        try:
            with self._drawn(session):
                environment = self._sessions[session] = _constructed(kind, name)
                environment.within_s = request["within_s"]
                step = environment.start(request["index"], request["task"])
            values = checked(step)
            if values["finish"]:
                raise WrongStep("status", values["status"], "running: the model has not had its turn yet")
            return values
        except BaseException:  # foreign code, also its sys.exit(): a world that failed to start is closed
            self._close(session)
            raise

    def _drawn(self, session: str) -> contextlib.AbstractContextManager[None]:
        own = self._random.get(session)
        return contextlib.nullcontext() if own is None else own.drawn()

    def _stepped(self, session: str, step: object) -> dict[str, Any]:
        values = checked(step)
        if values["finish"]:
            self._close(session)
        return values

    def _close(self, session: str) -> None:
        self._random.pop(session, None)
        environment = self._sessions.pop(session, None)
        if environment is None:
            return
        try:
            environment.close()
        except BaseException:  # noqa: BLE001 - foreign code: a failing close changes neither the result nor an earlier error
            traceback.print_exc()

    def _class_of(self, kind: str) -> tuple[type[Environment], str]:
        if kind not in self._classes:
            world_class, name = environment_class(self._kinds[kind])
            with contextlib.suppress(Exception):  # foreign code: the session meets the same error, and says it
                world_class.load(name)
            self._classes[kind] = world_class, name
        return self._classes[kind]


def _constructed(kind: type[Environment], name: str) -> Environment:
    """Raises TaskRefused for whatever its constructor raises, but for what is the machine's: it would raise it again."""
    try:
        return kind(name)
    except (OSError, MemoryError, NoRoom, TaskRefused):
        raise
    except Exception as exc:  # of foreign code, which may raise anything
        raise TaskRefused(f"{kind.__name__} cannot be made: {type(exc).__name__}: {_shown(exc)}{_place(exc)}") from exc


def _shown(exc: BaseException) -> str:
    try:
        text = " ".join(str(exc).split())
    except Exception:  # noqa: BLE001 - foreign code: __str__ may raise anything; the class name is still reported
        text = "no text"
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"


def _place(exc: BaseException) -> str:
    """Where it was raised, so that people see whose failure it is: the last folders of the file, and the line."""
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith("<")]
    return f" (in {'/'.join(frames[-1].filename.split('/')[-4:])}:{frames[-1].lineno})" if frames else ""


def main() -> None:
    sys.set_int_max_str_digits(MAX_DIGITS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends its workers
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "wb")
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)  # what environments print
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        WorldPlayer(json.loads(sys.argv[1]), answers).serve(requests)
    except BrokenPipeError:  # the service was killed
        pass
    finally:
        broken_pipe = contextlib.suppress(OSError)
        with broken_pipe:
            answers.close()
        os._exit(0)  # threads of environments would hold the process


if __name__ == "__main__":
    main()
