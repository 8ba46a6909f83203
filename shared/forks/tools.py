"""Forks bundled tools from one process that has them loaded: `python -m shared.forks.tools FD SETTINGS`

    gateway ──FD: {"start": …} and the pipes──▶ fork server ──fork──▶ warden ──fork──▶ the tool, confined
                                                        │ └─fork──▶ a tool that is alone, confined
                                                        └──{"ended": …}──▶ gateway

Loading Python and a tool takes 0.3 s of processor time, a fork some milliseconds. The tool gets the same warden, confinement
and limits as a command (`shared.sandbox.warden`). A tool whose module says `IS_ALONE` starts no process and writes no file:
seccomp and Landlock see to that, so it needs no warden, and is watched from here (`shared.sandbox.alone`), which halves what a
session costs.

The fork server has one thread, no secret and no session's pipe. It ends when the gateway does, with the tools that are alone;
wardens end their tools then by themselves. SETTINGS (JSON): `modules` to load and fork; `run`, a module's function that serves
a tool, and `with_wardens`, what that loads for tools that are not alone; what forks may read, and where sessions have folders.
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
from collections.abc import Callable
from types import ModuleType
from typing import Any

from shared.forks.server import FAILED, Forks, become
from shared.sandbox import mounts, seccomp
from shared.sandbox.alone import LoneTools
from shared.sandbox.confinement import drop_capabilities
from shared.sandbox.warden import Specification, keep_watch

MAX_START_BYTES = 128 * 1024
NUM_PIPES = 5  # stdin, stdout, stderr; of a tool with a warden also lifeline, report
ANY_USER = -1
RunTool = Callable[[ModuleType], None]


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    modules = {name: importlib.import_module(name) for name in settings["modules"]}
    where, _, name = settings["run"].partition(":")
    run: RunTool = getattr(importlib.import_module(where), name)
    if not all(map(_is_alone, modules.values())):
        importlib.import_module(settings["with_wardens"])
    if os.geteuid() == 0:  # once for all forks: each would make the same mounts
        mounts.show(settings["readable"], [settings["state_folder"]], ANY_USER)
        drop_capabilities()
    seccomp.program((), processes=False)  # kept
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    ToolForks(control, modules, run).serve()


def _is_alone(module: ModuleType) -> bool:
    return bool(getattr(module, "IS_ALONE", False))


class ToolForks:
    """Until the gateway closes its end."""

    def __init__(self, control: socket.socket, modules: dict[str, ModuleType], run: RunTool) -> None:
        self._control, self._modules, self._run = control, modules, run
        self._forks = Forks()  # each started for a number
        self._alone = LoneTools()
        self._unsent: list[dict[str, Any]] = []  # for a gateway that is slow to read: it may be waiting for us

    def serve(self) -> None:
        self._forks.begin()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the gateway drains
        alone = [name for name, module in self._modules.items() if _is_alone(module)]
        self._unsent.append({"alone": alone})
        while True:
            happened = self._wait()
            if self._forks.ends in happened:
                for pid, number, status in self._forks.ended():
                    self._unsent.append({"ended": number, "status": status, "why": self._alone.remove(pid)})
            from_gateway = happened.get(self._control.fileno(), 0)
            if from_gateway & select.POLLOUT:
                self.report()
            if from_gateway & ~select.POLLOUT:
                self._answer()
            self._alone.poll()

    def _wait(self) -> dict[int, int]:
        """{descriptor: events}. (`select.select` fails for descriptors from 1,024 on, and the gateway chose our end's number.)"""
        waiting, next_poll_s = select.poll(), self._alone.next_poll_s()
        waiting.register(self._forks.ends, select.POLLIN)
        waiting.register(self._control.fileno(), select.POLLIN | (select.POLLOUT if self._unsent else 0))
        return dict(waiting.poll(None if next_poll_s is None else 1000 * next_poll_s))

    def _answer(self) -> None:
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
            self._fork(message, pipes)
        except OSError as exc:
            print(f"a bundled tool cannot be forked: {exc}", file=sys.stderr, flush=True)
            self._unsent.append({"ended": message["start"], "status": FAILED, "why": f"cannot be forked: {exc}"})
        finally:
            for pipe in pipes:
                os.close(pipe)

    def _fork(self, message: dict[str, Any], pipes: list[int]) -> None:
        module, specification = self._modules[message["module"]], Specification.of(message["specification"])
        held = (self._control.fileno(),)

        def run() -> None:
            _serve_tool(self._run, module)

        if not _is_alone(module):

            def become_warden() -> None:
                _become(message, pipes)
                keep_watch(pipes[3], pipes[4], specification, run)  # which runs the tool in a child of its own

            self._forks.start(message["start"], become_warden, held)
            return
        rules, server = self._alone.rules_of(specification), os.getpid()

        def be_alone() -> None:
            try:
                _become(message, pipes)
                self._alone.confine(specification, rules, server)
            except (OSError, ValueError) as exc:
                os.write(2, f"sandbox: {exc}\n".encode())
                return
            run()

        self._alone.add(self._forks.start(message["start"], be_alone, held), specification)

    def _signal(self, start: int, number: int) -> None:
        """Only to one that is not collected yet: its pid cannot be another's."""
        for pid, known in self._forks.running.items():
            if known == start:
                os.kill(pid, number)

    def report(self) -> None:
        while self._unsent:
            try:
                self._control.send(json.dumps(self._unsent[0]).encode(), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # the gateway has ended, which the next reading shows
                self._unsent.clear()
                return
            self._unsent.pop(0)


def _become(message: dict[str, Any], pipes: list[int]) -> None:
    os.setsid()
    become(pipes[:3], message["environment"], "/")
    sys.argv = [message["module"], *message["arguments"]]


def _serve_tool(run: RunTool, module: ModuleType) -> None:
    """Of a process that is confined already. Never returns."""
    status = FAILED
    try:
        run(module)
        status = 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else FAILED
    except BaseException:  # noqa: BLE001 - the fork ends here: what the tool raised must not run on in the server's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
