"""Forks an agent's script from a process that has its packages loaded: `PYTHON server.py SOCKET GUARD FOLDER MODULE...`

    client ──SOCKET: arguments, environment, directory; stdin, stdout, stderr──▶ fork server ──fork──▶ guard ──fork──▶ script
      ◀───────────────────────────── status, when the last of its processes has ended ─────┘

Loading a framework takes seconds of processor time, a fork some milliseconds. A script runs as it does from the command line:
`__main__`, `sys.argv`, `sys.path[0]`, the directory, the environment, standard streams, exit status. What a module reads from
the environment when it is loaded, it read before.

`guard` (`shared.processes.guard`, by its file's path) ends the descendants of a script, also when the client is killed. FOLDER:
the script's, where its own modules are. Runs on Python 3.10 or newer, without Tandem.

`Forks` is what every fork server has: `tools` starts bundled tools by it.
"""

import atexit
import builtins
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

READY = "ready"
HEADER = struct.Struct("!I")  # the number of bytes that follow
STATUS = struct.Struct("!i")  # negative: ended by this signal
NUM_STREAMS = 3
_RECEIVE_S = 30.0
_LEAVE_S = 1.0  # of a script that is told to end: less than the client's own guard waits
_REST_S = 0.1
FAILED = 1


def main() -> None:
    path, guard_path, folder, *modules = sys.argv[1:]
    sys.path[0] = folder  # was this file's
    guard = _loaded("_tandem_guard", guard_path)
    lifeline = os.dup(0)  # which the sampler closes; modules and scripts do not see it
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for name in modules:
        importlib.import_module(name)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        raise SystemExit(
            f"loading {', '.join(modules)} starts threads ({', '.join(others)}), which a fork does not have"
        )
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(1024)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    print(READY, os.getpid(), flush=True)
    ScriptForks(listening, guard, lifeline).serve()


def _loaded(name: str, path: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None, "it is a Python file"
    assert specification.loader is not None, "it is a Python file"
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Forks:
    """Of this process, which has one thread. `ends`: can be read when one of them has ended."""

    def __init__(self) -> None:
        self.running: dict[int, Any] = {}  # by pid: what `start` was given
        self.ends, self._wakeup = os.pipe()

    def begin(self) -> None:
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def start(self, what: object, run: Callable[[], None], held: Sequence[int] = ()) -> int:
        """Run `run` in a fork, without the descriptors `held` of this process; its pid. Raises OSError."""
        pid = os.fork()
        if pid:
            self.running[pid] = what
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for descriptor in (*held, self.ends, self._wakeup):
                os.close(descriptor)
            run()
        except BaseException:  # noqa: BLE001 - the fork ends here: it must not go on as a second server
            traceback.print_exc()
        finally:
            os._exit(FAILED)

    def ended(self) -> Iterator[tuple[int, Any, int]]:
        """Pid, what it was started for, and status (negative: by this signal) of each that has ended."""
        os.read(self.ends, 4096)
        with contextlib.suppress(ChildProcessError):  # none is left
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self.running:  # else a process of what was loaded
                    yield pid, self.running.pop(pid), os.waitstatus_to_exitcode(status)


def become(streams: Sequence[int], environment: Mapping[str, str], directory: str) -> None:
    """In a fork: standard streams, directory and environment of its own."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)


class ScriptForks:
    """Until the sampler closes the lifeline."""

    def __init__(self, listening: socket.socket, guard: ModuleType, lifeline: int) -> None:
        self._listening, self._guard, self._lifeline = listening, guard, lifeline
        self._forks = Forks()  # each a guard, started for a connection

    def serve(self) -> None:
        self._forks.begin()
        while True:
            ready = self._guard.readable([self._listening.fileno(), self._forks.ends, self._lifeline])
            if self._lifeline in ready:
                return  # our own guard ends the scripts
            if self._forks.ends in ready:
                for _, connection, status in self._forks.ended():
                    with connection, contextlib.suppress(OSError):  # the client has been killed
                        connection.send(STATUS.pack(status), socket.MSG_DONTWAIT)
            if self._listening.fileno() in ready:
                try:
                    connection, _ = self._listening.accept()
                except OSError as exc:  # too many open files: until one of the scripts has ended
                    print(f"cannot start a script yet: {exc}", file=sys.stderr, flush=True)
                    time.sleep(_REST_S)  # the connection stays ready: without a pause this loop would spin
                    continue
                self._fork(connection)

    def _fork(self, connection: socket.socket) -> None:
        others = [other.fileno() for other in self._forks.running.values()]
        held = (self._listening.fileno(), self._lifeline, *others)
        try:
            self._forks.start(connection, lambda: self._become_guard(connection), held)
        except OSError as exc:  # too many processes, no memory: this client's script fails, the others run on
            print(f"cannot fork: {exc}", file=sys.stderr, flush=True)
            connection.close()

    def _become_guard(self, connection: socket.socket) -> None:
        """Never returns."""
        request, streams = _received(connection)
        become(streams, request["environment"], request["directory"])
        self._guard.keep(connection.detach(), lambda: None, lambda: _run(request["arguments"]), leave_s=_LEAVE_S)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    connection.settimeout(_RECEIVE_S)
    head, streams, _, _ = socket.recv_fds(connection, HEADER.size, NUM_STREAMS)
    (remaining,) = HEADER.unpack(head)
    parts = []
    while remaining:
        parts.append(connection.recv(remaining))
        if not parts[-1]:
            raise EOFError("the client left before its request was whole")
        remaining -= len(parts[-1])
    return json.loads(b"".join(parts)), streams


def _run(arguments: list[str]) -> None:
    """The script, from its beginning to the interpreter's end. Never returns."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as a Python that starts sets them; the guard gave a command's
        signal.signal(number, signal.SIG_IGN)
    _seed()
    status = FAILED
    sys.modules["__main__"] = script = ModuleType("__main__")  # to the end: exit functions and threads find it
    try:
        if arguments[0] == "-m":
            sys.argv, sys.path[0] = arguments[1:], os.getcwd()
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # as `python -m` does
        else:
            sys.argv = list(arguments)
            script.__file__ = arguments[0]
            script.__loader__ = SourceFileLoader("__main__", arguments[0])
            script.__dict__["__builtins__"] = builtins
            with open(arguments[0], "rb") as file:
                code = compile(file.read(), arguments[0], "exec")
            exec(code, script.__dict__)
        status = 0
    except SystemExit as exc:
        status = _status_of(exc.code)
    except BaseException as exc:  # noqa: BLE001 - as the interpreter does with what a script raises
        sys.excepthook(type(exc), exc, _of_script(exc.__traceback__))
        status = -signal.SIGINT if isinstance(exc, KeyboardInterrupt) else FAILED
    finally:
        _leave(status)


def _of_script(frames: TracebackType | None) -> TracebackType | None:
    """Without those of this file and of runpy, before the script's own."""
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    return frames


def _seed() -> None:
    """Python gives its own generator a new seed in each fork; NumPy's and PyTorch's would all draw the same."""
    seed = int.from_bytes(os.urandom(4), "little")
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _status_of(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return FAILED


def _leave(status: int) -> None:
    """As the interpreter ends: threads, exit functions, buffers. `status` below 0: by this signal."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # the interpreter's own, as multiprocessing calls it
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:  # noqa: BLE001 - the process ends with its status in any case
        traceback.print_exc()
    finally:
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
