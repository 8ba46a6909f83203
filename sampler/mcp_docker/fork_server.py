"""Forks tools from one process that has them loaded: `python -m sampler.mcp_docker.fork_server FD MODULE...`

    gateway ──FD: {"start": …} and the pipes──▶ fork server ──fork──▶ warden ──fork──▶ the tool, confined
                                                        │                                 └─ shares the loaded code, copy on write
                                                        └──{"ended": …}──▶ gateway

Loading Python, the SDK and a tool takes about a second of processor time, a fork some milliseconds. The tool gets the same
warden, confinement and limits as a command (`sandbox.warden`). The fork server has one thread, no secret and no session's
pipe; it ends when the gateway does; the wardens end their tools then by themselves.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from types import ModuleType
from typing import Any

from sampler.mcp_docker.sandbox.warden import Specification, keep_watch
from sampler.mcp_docker.tools.serving import run

MAX_START_BYTES = 128 * 1024
NUM_PIPES = 5  # stdin, stdout, stderr, lifeline, report
_TOOL_FAILED = 1


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    modules = {name: importlib.import_module(name) for name in sys.argv[2:]}
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    serve(control, modules)


def serve(control: socket.socket, modules: dict[str, ModuleType]) -> None:
    """Until the gateway closes its end."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the gateway drains
    running: dict[int, int] = {}  # pid: number of the start
    control.send(b'{"ready": true}')
    while True:
        ready, _, _ = select.select([control.fileno(), told], [], [])
        if told in ready:
            os.read(told, 4096)
            _report_ended(control, running)
        if control.fileno() in ready:
            body, pipes, _, _ = socket.recv_fds(control, MAX_START_BYTES, NUM_PIPES)
            if not body:
                os._exit(0)
            message = json.loads(body)
            if "signal" in message:
                _signal(running, message["signal"], message["number"])
                continue
            pid = _fork(control, message["start"])
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for own in (control.detach(), told, tell):
                    os.close(own)
                _become(message, pipes, modules)
            if pid is not None:
                running[pid] = message["start"]
            for pipe in pipes:
                os.close(pipe)


def _fork(control: socket.socket, number: int) -> int | None:
    """None: there are too many processes, or there is no memory. This session has no tools then; the others keep theirs."""
    try:
        return os.fork()
    except OSError as exc:
        print(f"a bundled tool cannot be forked: {exc}", file=sys.stderr, flush=True)
        control.send(json.dumps({"ended": number, "status": _TOOL_FAILED}).encode())
        return None


def _signal(running: dict[int, int], start: int, number: int) -> None:
    """Only to one that is not collected yet: its pid cannot be another's."""
    for pid, known in running.items():
        if known == start:
            os.kill(pid, number)


def _report_ended(control: socket.socket, running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ended = {"ended": running.pop(pid), "status": os.waitstatus_to_exitcode(status)}
        control.send(json.dumps(ended).encode())


def _become(message: dict[str, Any], pipes: list[int], modules: dict[str, ModuleType]) -> None:
    """A warden, which runs the tool in a child of its own. Never returns."""
    try:
        for target, pipe in enumerate(pipes[:3]):
            os.dup2(pipe, target)
            os.close(pipe)
        os.setsid()
        os.chdir("/")
        os.environ.clear()
        os.environ.update(message["environment"])
        sys.argv = [message["module"], *message["arguments"]]
        module = modules[message["module"]]
        keep_watch(pipes[3], pipes[4], Specification.of(message["specification"]), lambda: _run(module))
    finally:
        os._exit(_TOOL_FAILED)


def _run(module: ModuleType) -> None:
    """Of the tool: confined already."""
    status = _TOOL_FAILED
    try:
        run(module.tool_server(sys.argv[1:]))
        status = 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else _TOOL_FAILED
    except BaseException:  # noqa: BLE001 - the end of a forked program: what it raised must not run on in the fork server's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
