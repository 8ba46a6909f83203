"""Tasks in an operating system, by shell commands: `shell:train`, `shell:heldout`.

    index         the seed of the task; held-out tasks ask for what no training task asks
    custom_task   {"form": "text", "max_turns": 12}, or a task of your own: {"question": "…", "files": {"a/b.txt": "…"},
                  "setup": "commands before the start"}, with "answer": ["…"] or "check": "commands that succeed if it is done"

As AgentBench's OS tasks. Commands run in MCP-Docker's sandbox (bubblewrap where it works here, else process), in a folder of
the session's own: files stay from turn to turn, processes end with their command. So it needs Tandem's own Python.
"""

import asyncio
import io
import os
import tarfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sampler.environments.adapters.acting import (
    FORM_FIELDS,
    ActingEnvironment,
    ToolOfWorld,
    count_of,
    is_own,
    same_values,
)
from sampler.environments.adapters.shell_tasks import SPLITS, task_of
from sampler.environments.environment import Index, NoRoom, Step, TaskRefused, seed_of
from sampler.environments.task_fields import OBJECT, TEXT, VALUES, fields_of

if TYPE_CHECKING:
    from shared.sandbox import IsolationLevel

COMMAND_S = 20.0
MAX_COMMAND_CHARS = 20_000
MAX_OUTPUT_CHARS = 6_000
ASKED = ("answer", "check")


class ShellEnvironment(ActingEnvironment):
    in_threads = True  # its commands are other processes

    tools: ClassVar[tuple[ToolOfWorld, ...]] = (
        ToolOfWorld("bash_action", "script", "bash", "Runs a script in bash, and returns its output and exit status."),
        ToolOfWorld("answer_action", "answer", "answer", "Ends the task with your answer.", ends=True, is_list=True),
        ToolOfWorld("finish_action", "thought", "finish", "Ends a task that asks for no answer.", ends=True),
    )

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        task = fields_of(task, **FORM_FIELDS, question=TEXT, files=OBJECT, setup=TEXT, answer=VALUES, check=TEXT)
        played = task if is_own(task) else task_of(self.name, seed_of(index))
        given = [name for name in ASKED if name in played]
        if len(given) != 1:
            raise TaskRefused(f"the task has {given or 'neither'}; expected one of {', '.join(ASKED)}")
        self._played, self._folder = played, State.of_worker().new_folder()
        status, output = self._ran("tar -xf -", COMMAND_S, _packed(played.get("files") or {}))
        if status == 0 and "setup" in played:
            status, output = self._ran(str(played["setup"]), COMMAND_S)
        if status != 0:
            raise TaskRefused(f"the task's files cannot be made: {output}")
        return self.opening(task, f"{played['question']}\n\nYou are in the folder with the files.")

    def act(self, tool: ToolOfWorld, text: str, within_s: float) -> str:
        if len(text) > MAX_COMMAND_CHARS or "\0" in text:
            return f"The script has {len(text)} characters; expected at most {MAX_COMMAND_CHARS}, and no NUL."
        return self._ran(text, min(COMMAND_S, within_s))[1]

    def scored(self, answer: Sequence[str], within_s: float) -> tuple[float, dict[str, Any]]:
        if "answer" in self._played:
            expected = list(map(str, self._played["answer"]))
            return float(same_values(answer, expected)), {"answer": list(answer), "expected": expected}
        status, output = self._ran(str(self._played["check"]), min(COMMAND_S, within_s))
        return float(status == 0), {"check": output, "expected": "exit status 0"}

    def close(self) -> None:
        if hasattr(self, "_folder"):
            State.of_worker().remove(self._folder)

    def _ran(self, script: str, within_s: float, given: bytes = b"") -> tuple[int, str]:
        """Status, and the output with it in words. Raises OSError where nothing can be started."""
        return asyncio.run(run_in_sandbox(self._folder, State.of_worker().level, script, within_s, given))

    @classmethod
    def indices(cls, name: str) -> Sequence[Index]:
        _ = State.of_worker().level  # raises where no sandbox works
        return range(count_of(name, SPLITS))


async def run_in_sandbox(
    folder: Path, level: "IsolationLevel", script: str, within_s: float, given: bytes
) -> tuple[int, str]:
    from shared.sandbox import Launch, Limits, start
    from shared.sandbox.bounded_output import BoundedOutput

    lifetime_s = max(0.5, within_s)
    limits = Limits(
        cpu_s=10.0, memory_mb=256, processes=32, file_mb=16, folder_mb=32, output_mb=4, lifetime_s=lifetime_s
    )
    safe = script.encode("utf-8", "replace").decode("utf-8")
    process = await start(Launch(("bash", "-c", f"exec 2>&1\n{safe}"), folder, limits=limits), level)
    output = BoundedOutput(MAX_OUTPUT_CHARS)
    try:
        feeding = asyncio.create_task(_feed(process.stdin, given), name="input of a command")
        while piece := await process.stdout.read(65536):
            output.add(piece)
        await feeding
        status = await process.wait()
    finally:
        await process.stop()
    ended = f"ended: {process.exceeded}" if process.exceeded else f"exit status {status}"
    return status or int(bool(process.exceeded)), f"{output.text}\n[{ended}]".lstrip()


async def _feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    try:
        stdin.write(given)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()
    except (BrokenPipeError, ConnectionResetError):  # the command does not read it
        pass


class State:
    """Where the sessions of this worker have their folders; what killed workers left there is removed."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _one: ClassVar["State | None"] = None

    def __init__(self) -> None:
        from shared.files.private_folder import temporary_folder
        from shared.sandbox import chosen_level, own_state_folder

        self.level = chosen_level(None)
        self._folder, _ = asyncio.run(own_state_folder(temporary_folder("shells")))

    @classmethod
    def of_worker(cls) -> "State":
        """Raises ConfigError, where no sandbox works."""
        with cls._lock:
            if cls._one is None:
                cls._one = cls()
            return cls._one

    def new_folder(self) -> Path:
        from shared.errors import ConfigError
        from shared.sandbox import new_folder

        with self._lock:
            try:
                return new_folder(self._folder)
            except ConfigError as exc:  # each session has a user of its own, where the worker is root
                raise NoRoom(str(exc)) from exc

    def remove(self, folder: Path) -> None:
        from shared.sandbox import discard

        with self._lock:
            asyncio.run(discard(folder))


def _packed(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(os.path.normpath(name))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()
