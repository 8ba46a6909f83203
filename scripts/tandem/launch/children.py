"""The launcher's child processes: starts each with a log, watches them, stops them in order. No child outlives the launcher.

    launcher ──pipe──▶ reaper     stops everything in order when the launcher is killed
        ├─ mongod, tools, environments, engine keepers, samplers, trainer      each in its own session, with its own log
        ╎       so that Ctrl-C reaches only the launcher

An unexpected exit of a child raises ChildDied, except status 0 of one that `ends_itself`. A crashed sampler or service of
environments is restarted up to `RESTARTS` times, with exponential back-off; after `STEADY_S` of work its count starts again
at 0. Losing some but not all samplers is only reported.
"""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from shared.configuration.secrets import is_secret_variable
from shared.errors import TandemError
from shared.files.private_file import append_private
from shared.files.private_folder import make_private_folder
from shared.processes.environment import plain_environment
from shared.processes.mongod import Mongod
from shared.processes.run_module import command
from tandem.launch.errors import ErrorLines, Repeats, raised
from tandem.launch.nodes import is_of_torchrun
from tandem.launch.processes import MARK, Target, start_time, stop

POLL_S = 0.25
TAIL_LINES = 30  # torch's launcher ends its log with 15 lines
# Stopping order, and seconds between SIGTERM and SIGKILL. Consumers stop before their producers.
STAGES = {
    "trainer": (0, 40.0),
    "sampler": (1, 45.0),
    "keeper": (2, 25.0),
    "tools": (3, 5.0),
    "environments": (3, 15.0),
    "mongod": (4, 30.0),
}
CLIENTS_OF_NOTHING_S = 3.0  # instead, once the database has died: none of them can write anything any more
REPLICAS = ("sampler", "environments")
RESTARTS = 5  # of one replica that crashes repeatedly
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 600.0
ASKED_TO, REFUSED = 0, 2  # exit statuses: stopped on purpose; wrong configuration, for which a restart is useless


class ChildDied(TandemError):
    """A child exited unexpectedly; the message names it and contains the end of its log."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a child runs: its output is appended to `log_path`; `environment` is added to the launcher's own."""

    name: str
    kind: str
    command: Sequence[str]
    log_path: Path
    environment: dict[str, str] = field(default_factory=dict)
    ends_itself: bool = False  # status 0 is expected


@dataclass(slots=True)
class Child:
    """One process. `log_start`: offset of this start's output in the appended log."""

    program: Program
    process: "subprocess.Popen[bytes]"
    log_start: int
    target: Target
    errors: ErrorLines
    may_exit: bool = False  # any exit is expected: it was asked to stop
    started_at: float = field(default_factory=time.monotonic)
    restarts: int = 0  # since the last steady process
    died_at: float = math.inf  # when its unexpected end was seen
    due_at: float | None = None  # time of its restart; None: it is running, or lost

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def kind(self) -> str:
        return self.program.kind

    @property
    def log_path(self) -> Path:
        return self.program.log_path

    @property
    def died(self) -> bool:
        """Whether it exited unexpectedly."""
        status = self.returncode
        return status is not None and not self.may_exit and not (self.program.ends_itself and status == 0)

    @property
    def is_lost(self) -> bool:
        """Whether it crashed and will not be restarted."""
        used_up = self.restarts >= RESTARTS or self.returncode in (ASKED_TO, REFUSED)
        return self.died and (self.kind not in REPLICAS or used_up)

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    def log_text(self) -> str:
        """The output since this start."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(self.log_start)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def error(self) -> str:
        """The error that it ended with, in one line; empty if it ended otherwise, as by a signal."""
        return raised(self.log_text()) if (self.returncode or 0) > 0 else ""

    def last_line(self) -> str:
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(self.log_start, self.log_path.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")

    def crash_report(self) -> str:
        """Name, exit status and the end of its log."""
        tail = (
            "\n".join(f"    {line}" for line in self.log_text().splitlines()[-TAIL_LINES:]) or "    (it wrote nothing)"
        )
        how = describe_exit(self.returncode)
        return f"{self.name} (pid {self.process.pid}) {how}; the end of {self.log_path}:\n{tail}"


def _inherited(kind: str) -> dict[str, str]:
    """The launcher's environment, without secrets of other kinds of services and without its own rank under torchrun."""
    if kind == "tools":  # the example's own server needs no key of an engine or a judge
        return plain_environment()
    own = f"TANDEM_{kind.upper()}_"
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(own) or not (is_secret_variable(name) or is_of_torchrun(name))
    }


def describe_exit(status: int | None) -> str:
    if status is None:
        return "is running"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


class Starter(Protocol):
    """What starts children, or shows what it would start (`dry_run.py`)."""

    def start(self, program: Program) -> Child: ...


class Children:
    """Use as a context manager; its exit stops all remaining children.

    `lock_fd`: an open, locked file that the reaper keeps open until all children have stopped.
    """

    def __init__(self, run: str, root: Path, lock_fd: int | None = None) -> None:
        self._root = root
        self._lock_fd = lock_fd
        self._launch = f"{run}-{uuid.uuid4().hex}"
        self._reaper: subprocess.Popen[bytes] | None = None
        self._reported: set[str] = set()
        self._repeats = Repeats()
        self._stopping = False
        self.children: list[Child] = []
        self.force = False  # set it to stop without grace periods
        self.note: Callable[[str], None] = lambda text: None  # receives progress messages

    def __enter__(self) -> Self:
        self._reaper = subprocess.Popen(
            [sys.executable, "-S", "-E", *command("tandem.launch.reaper")[1:]],
            cwd=self._root,
            env=plain_environment(),
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if self._lock_fd is None else (self._lock_fd,),
        )
        return self

    def start(self, program: Program) -> Child:
        make_private_folder(program.log_path.parent)  # messages quote what models, tools and agents wrote
        mark = self._announce(program)
        with append_private(program.log_path) as log:
            begin = log.tell()
            process = subprocess.Popen(
                list(program.command),
                cwd=self._root,
                env={**_inherited(program.kind), **program.environment, MARK: mark, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._add(program, process, begin, mark)

    def start_mongod(self, server: Mongod) -> Child:
        """Start the embedded MongoDB as a child. Raises MongodFailed."""
        program = Program("mongod", "mongod", (), server.log_path)
        mark = self._announce(program)
        os.environ[MARK] = mark  # the server's process inherits it
        try:
            server.start()
        finally:
            del os.environ[MARK]
        assert server.process is not None
        return self._add(program, server.process, server.log_path.stat().st_size, mark)

    def _announce(self, program: Program) -> str:
        """Send the reaper a child's mark before it starts, so that the child is covered from the beginning."""
        stage, grace_s = STAGES[program.kind]
        mark = f"{self._launch}:{program.name}"
        self._register(Target(program.name, 0, -1, mark, stage, grace_s))
        return mark

    def _add(self, program: Program, process: "subprocess.Popen[bytes]", log_start: int, mark: str) -> Child:
        stage, grace_s = STAGES[program.kind]
        target = Target(program.name, process.pid, start_time(process.pid) or 0, mark, stage, grace_s)
        self._register(target)
        child = Child(program, process, log_start, target, ErrorLines(program.log_path, log_start))
        self.children.append(child)
        return child

    def _register(self, target: Target) -> None:
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(json.dumps(asdict(target)).encode() + b"\n")
        self._reaper.stdin.flush()

    def of_kind(self, kind: str) -> list[Child]:
        return [child for child in self.children if child.kind == kind]

    async def watch(self) -> None:
        """Never returns; raises ChildDied as soon as an essential child has exited."""
        while True:
            self.show_errors()
            self.revive()
            self.check()
            await asyncio.sleep(POLL_S)

    def show_errors(self) -> None:
        """Report new error lines of the logs, equal ones of several children once."""
        for child in self.children:
            for error in child.errors.new() if child.kind != "mongod" else ():
                text = self._repeats.shown(error)
                if text is not None:
                    self.note(f"{child.name}: {text}")

    def revive(self) -> None:
        """Restart crashed replicas after their back-off; reports it by `tell`."""
        for child in [child for child in self.children if child.died and not child.is_lost]:
            now = time.monotonic()
            if child.due_at is None:
                if now - child.started_at >= STEADY_S:
                    child.restarts = 0
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**child.restarts)
                child.due_at = now + pause_s
                which = f"{child.restarts + 1} of at most {RESTARTS}"
                why = f" by {error}" if (error := child.error()) else ""
                how = describe_exit(child.returncode) + why
                self.note(f"{child.name} {how}: starting it again in {pause_s:g} s ({which})")
            elif child.due_at <= now and not self._stopping:
                self.children.remove(child)
                again = self.start(child.program)
                again.restarts = child.restarts + 1

    def check(self) -> None:
        for child in self.children:
            child.died_at = min(child.died_at, time.monotonic() if child.died else math.inf)
        lost = [child for child in self.children if child.is_lost and self._is_essential(child)]
        if lost:  # a dead database is the cause of what its clients say
            raise ChildDied(min(lost, key=lambda child: (child.kind != "mongod", child.died_at)).crash_report())
        if self._reaper is not None and self._reaper.poll() is not None:
            raise ChildDied(
                f"the reaper {describe_exit(self._reaper.returncode)}; without it the children could outlive the launcher"
            )

    def _is_essential(self, child: Child) -> bool:
        return child.kind not in REPLICAS or all(c.is_lost for c in self.of_kind(child.kind))

    @property
    def has_losses(self) -> bool:
        """Whether `losses` would return one."""
        return any(c.is_lost and c.name not in self._reported for c in self.children)

    def losses(self) -> list[Child]:
        """Replicas lost since the last call."""
        new = [c for c in self.children if c.is_lost and c.name not in self._reported]
        self._reported |= {child.name for child in new}
        return new

    async def wait_exit(self, child: Child) -> None:
        """Wait for a child that ends itself. Raises ChildDied for another exit status than 0."""
        while True:
            status = child.returncode
            if status is not None:
                break
            await asyncio.sleep(POLL_S)
        if status and not child.may_exit:
            self.check()  # a dead database is the cause of what its clients say
            raise ChildDied(child.crash_report())

    def stop(self, kinds: Sequence[str] = tuple(STAGES)) -> None:
        """Stop the children of `kinds` in order; blocks until they and their descendants are gone."""
        self._stopping = True  # no restarts from here on
        chosen = [child for child in self.children if child.kind in kinds]
        most_s = CLIENTS_OF_NOTHING_S if any(child.died for child in self.of_kind("mongod")) else math.inf
        for child in chosen:
            child.may_exit |= child.returncode is None  # one that has failed stays so
        targets = [replace(child.target, grace_s=min(child.target.grace_s, most_s)) for child in chosen]
        stop(targets, force=lambda: self.force, note=self.note)
        for child in chosen:
            child.process.wait(5)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()  # it finds no live target and exits
        self._reaper.wait(60)
