"""Forks tools from one process that has them loaded: `python -m sampler.mcp_docker.forks.server FD SETTINGS`

    gateway ──FD: {"start": …} and the pipes──▶ fork server ──fork──▶ warden ──fork──▶ the tool, confined
                                                        │ └─fork──▶ a tool that is alone, confined
                                                        └──{"ended": …}──▶ gateway

Loading Python and a tool takes 0.3 s of processor time, a fork some milliseconds. The tool gets the same warden, confinement
and limits as a command (`shared.sandbox.warden`). A tool whose module says `IS_ALONE` starts no process and writes no file:
seccomp and Landlock see to that, so it needs no warden, and is watched from here (`shared.sandbox.alone`), which halves what a
session costs.

The fork server has one thread, no secret and no session's pipe. It ends when the gateway does, with the tools that are alone;
wardens end their tools then by themselves.
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

from sampler.mcp_docker.tools.serving import run
from shared.sandbox import mounts, seccomp
from shared.sandbox.alone import LoneTools
from shared.sandbox.confinement import drop_capabilities
from shared.sandbox.warden import Specification, keep_watch

MAX_START_BYTES = 128 * 1024
NUM_PIPES = 5  # stdin, stdout, stderr; of a tool with a warden also lifeline, report
ANY_USER = -1
_TOOL_FAILED = 1


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    modules = {name: importlib.import_module(name) for name in settings["modules"]}
    if not all(map(_is_alone, modules.values())):
        importlib.import_module("sampler.mcp_docker.tools.calls")  # which `run` would load
    if os.geteuid() == 0:  # once for all forks: each would make the same mounts
        mounts.show(settings["readable"], [settings["state_folder"]], ANY_USER)
        drop_capabilities()
    seccomp.program((), processes=False)  # kept
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    ForkServerLoop(control, modules).run()


def _is_alone(module: ModuleType) -> bool:
    return bool(getattr(module, "IS_ALONE", False))


class ForkServerLoop:
    """Until the gateway closes its end."""

    def __init__(self, control: socket.socket, modules: dict[str, ModuleType]) -> None:
        self._control, self._modules = control, modules
        self._running: dict[int, int] = {}  # pid: number of the start
        self._alone = LoneTools()
        self._untold: list[dict[str, Any]] = []  # for a gateway that is slow to read: it may be waiting for us
        self._told, self._tell = os.pipe()

    def run(self) -> None:
        os.set_blocking(self._tell, False)
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the gateway drains
        alone = [name for name, module in self._modules.items() if _is_alone(module)]
        self._untold.append({"alone": alone})
        while True:
            happened = self._wait()
            if self._told in happened:
                os.read(self._told, 4096)
                self._note_ended()
            from_gateway = happened.get(self._control.fileno(), 0)
            if from_gateway & select.POLLOUT:
                self.report()
            if from_gateway & ~select.POLLOUT:
                self._serve()
            self._alone.look()

    def _wait(self) -> dict[int, int]:
        """{descriptor: events}. (`select.select` fails for descriptors from 1,024 on, and the gateway chose our end's number.)"""
        waiting, next_look_s = select.poll(), self._alone.next_look_s()
        waiting.register(self._told, select.POLLIN)
        waiting.register(self._control.fileno(), select.POLLIN | (select.POLLOUT if self._untold else 0))
        return dict(waiting.poll(None if next_look_s is None else 1000 * next_look_s))

    def _serve(self) -> None:
        body, pipes, _, _ = socket.recv_fds(self._control, MAX_START_BYTES, NUM_PIPES)
        if not body:
            self._alone.end_all()
            os._exit(0)
        message = json.loads(body)
        if "signal" in message:
            self._signal(message["signal"], message["number"])
            return
        self.start(message, pipes)

    def start(self, message: dict[str, Any], pipes: list[int]) -> None:
        """If it cannot be forked (too many processes, no memory), this session has no tools; the others keep theirs."""
        try:
            self._running[self._forked(message, pipes)] = message["start"]
        except OSError as exc:
            print(f"a bundled tool cannot be forked: {exc}", file=sys.stderr, flush=True)
            self._untold.append({"ended": message["start"], "status": _TOOL_FAILED, "why": f"cannot be forked: {exc}"})
        finally:
            for pipe in pipes:
                os.close(pipe)

    def _forked(self, message: dict[str, Any], pipes: list[int]) -> int:
        module = self._modules[message["module"]]
        specification = Specification.of(message["specification"])
        if not _is_alone(module):
            pid = os.fork()
            if pid == 0:
                self._become_warden(message, pipes, module, specification)
            return pid
        rules = self._alone.rules_of(specification)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _become(message, pipes)
                self._alone.confine(specification, rules, server)
                _run(module)
            except (OSError, ValueError) as exc:
                os.write(2, f"sandbox: {exc}\n".encode())
            finally:
                os._exit(_TOOL_FAILED)
        self._alone.add(pid, specification)
        return pid

    def _signal(self, start: int, number: int) -> None:
        """Only to one that is not collected yet: its pid cannot be another's."""
        for pid, known in self._running.items():
            if known == start:
                os.kill(pid, number)

    def _note_ended(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ended = {"ended": self._running.pop(pid), "status": os.waitstatus_to_exitcode(status)}
            self._untold.append({**ended, "why": self._alone.remove(pid)})

    def report(self) -> None:
        while self._untold:
            try:
                self._control.send(json.dumps(self._untold[0]).encode(), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # the gateway has ended, which the next reading shows
                self._untold.clear()
                return
            self._untold.pop(0)

    def _become_warden(
        self, message: dict[str, Any], pipes: list[int], module: ModuleType, specification: Specification
    ) -> None:
        """Which runs the tool in a child of its own. Never returns."""
        try:
            for own in (self._control.detach(), self._told, self._tell):
                os.close(own)
            _become(message, pipes)
            keep_watch(pipes[3], pipes[4], specification, lambda: _run(module))
        finally:
            os._exit(_TOOL_FAILED)


def _become(message: dict[str, Any], pipes: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    for target, pipe in enumerate(pipes[:3]):
        os.dup2(pipe, target)
        os.close(pipe)
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(message["environment"])
    sys.argv = [message["module"], *message["arguments"]]


def _run(module: ModuleType) -> None:
    """Of the tool: confined already."""
    status = _TOOL_FAILED
    try:
        run(module.tool_server(sys.argv[1:]))
        status = 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else _TOOL_FAILED
    except BaseException:  # noqa: BLE001 - the fork ends here: what the tool raised must not run on in the server's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
