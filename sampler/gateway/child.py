"""Runs an agent's command: a child process in a directory of its own, which ends with the episode, all descendants included.

It is given, of the sampler's environment, only what tool servers get (PATH, HOME, …), and the gateway's address and key in
the variables that clients read. Its output is kept in files; their ends are part of an error.
"""

import asyncio
import errno
import json
import logging
import os
import shlex
from asyncio import StreamReader
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from sampler.core.errors import CommandNotStarted
from sampler.core.tools.isolation import Sandbox
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.server import OpenAttempt
from sampler.gateway.task_messages import prompt_of
from sampler.gateway.workplace import RunningCommand, Uncounted, Workplace, plain_workplace
from shared.errors import ConfigError
from shared.files.private_file import write_private

MAX_OUTPUT_BYTES = 4 * 1024 * 1024  # kept of each stream, at its beginning
MAX_TAIL_CHARS = 4000  # shown of each in an error
PIECE_BYTES = 64 * 1024
_WRONG_COMMAND = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.E2BIG, errno.ELOOP)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """`stdout`, `stderr`: their ends. `exceeded`: the limit that ended it; empty: none."""

    status: int
    stdout: str
    stderr: str
    exceeded: str = ""

    @property
    def output(self) -> str:
        """For an error."""
        return self.stderr or self.stdout


Started = Callable[[list[str]], Awaitable[list[str]]]  # from a command's words to those that are started


# 11 parameters: one command, its task, and where it runs
async def run_command(
    command: str,
    attempt: OpenAttempt,
    *,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    payload: Mapping[str, Any],
    kept: Path | None,
    user: str | None = None,
    sandbox: Sandbox = "off",
    started: Started | None = None,
    isolated: AgentSandbox | None = None,
    uncounted: Uncounted = nullcontext,
) -> EndedCommand:
    """`kept`: the directory to keep. `user`, `sandbox`: as for tool servers; `isolated` takes their place. `uncounted`: around
    what is done after the command's end, and does not count as its time.

    Raises ConfigError for what cannot be run, and CommandNotStarted where the machine lacks something: memory, room, files.
    """
    prompt = prompt_of(messages)
    task = {**payload, "prompt": prompt, "messages": list(messages), "model": model}
    place = (
        plain_workplace(kept, user, sandbox)
        if isolated is None
        else isolated.workplace(kept, split(command), attempt.url, uncounted)
    )
    async with place as work:
        task_file = _task_file(work, task)
        words = {"{query}": str(payload["query"]), "{prompt}": prompt, "{task_file}": str(task_file)}
        parts = _replaced(split(command), words)
        try:
            running = await work.start(
                parts if started is None else await started(parts),
                _variables(attempt, model) | {"TANDEM_TASK_FILE": str(task_file)},
            )
        except (OSError, ValueError) as exc:
            if isinstance(exc, OSError) and exc.errno not in _WRONG_COMMAND:
                raise CommandNotStarted(f"agent_command cannot be started now: {exc}") from exc
            raise ConfigError(f"agent_command: {exc}") from exc
        try:
            return await _until_it_ends(running, prompt.encode(), work.outputs)
        finally:
            await asyncio.shield(running.end())


def _task_file(work: Workplace, task: Mapping[str, Any]) -> Path:
    """Raises CommandNotStarted."""
    file = work.folder / "task.json"
    try:
        write_private(file, json.dumps(task, ensure_ascii=False))
        if work.owner is not None:
            os.chown(file, *work.owner)
    except OSError as exc:
        raise CommandNotStarted(f"the task cannot be written for agent_command: {exc}") from exc
    return file


def split(command: str) -> list[str]:
    """The words of `agent_command`. Raises ConfigError."""
    try:
        parts = shlex.split(command)
    except ValueError as exc:
        raise ConfigError(f"agent_command is {command!r}: {exc}") from exc
    if not parts:
        raise ConfigError("agent_command is empty; expected a command")
    return parts


def _replaced(parts: list[str], words: Mapping[str, str]) -> list[str]:
    """With placeholders replaced inside the words: a query never becomes several words."""
    for placeholder, text in words.items():
        parts = [text if part == placeholder else part.replace(placeholder, text) for part in parts]
    return parts


def _variables(attempt: OpenAttempt, model: str) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{attempt.url}/v1",
        "OPENAI_API_BASE": f"{attempt.url}/v1",
        "OPENAI_API_KEY": attempt.key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": attempt.url,
        "ANTHROPIC_API_KEY": attempt.key,
        "ANTHROPIC_MODEL": model,
        "GOOGLE_GEMINI_BASE_URL": attempt.url,
        "GEMINI_API_KEY": attempt.key,
        "GEMINI_MODEL": model,
        "TANDEM_MODEL": model,
        "TANDEM_SCORE_URL": f"{attempt.url}/score",
    }


async def _until_it_ends(running: RunningCommand, task: bytes, outputs: Path | None) -> EndedCommand:
    async with asyncio.TaskGroup() as group:
        group.create_task(_write_task(running.stdin, task), name="agent stdin")
        out = group.create_task(_kept(running.stdout, outputs and outputs / "stdout.txt"), name="agent stdout")
        err = group.create_task(_kept(running.stderr, outputs and outputs / "stderr.txt"), name="agent stderr")
    status, stderr = await running.ended(), err.result()
    return EndedCommand(status, out.result(), stderr, running.exceeded(status, stderr))


async def _write_task(stdin: asyncio.StreamWriter, task: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # a command that does not read it
        stdin.write(task)
        await stdin.drain()
    stdin.close()


def _writable(file: Path, stack: ExitStack) -> FileIO | None:
    try:
        return stack.enter_context(FileIO(file, "wb"))
    except OSError as exc:
        log.warning("an agent's output is not kept: %s", exc)
        return None


def _written(file: FileIO, piece: bytes) -> FileIO | None:
    """None: the disk is full, and nothing more is written. The episode does not depend on it."""
    try:
        file.write(piece)
    except OSError as exc:
        log.warning("an agent's output is not kept as a whole: %s", exc)
        return None
    return file


async def _kept(pipe: StreamReader, file: Path | None) -> str:
    """Write the beginning to the file; return the end."""
    tail = b""
    remaining = MAX_OUTPUT_BYTES
    with ExitStack() as stack:
        stored = None if file is None else _writable(file, stack)
        while piece := await pipe.read(PIECE_BYTES):
            if stored is not None:
                stored = _written(stored, piece[:remaining])
            remaining = max(0, remaining - len(piece))
            tail = (tail + piece)[-4 * MAX_TAIL_CHARS :]  # a character has at most 4 bytes
    return tail.decode(errors="replace").strip()[-MAX_TAIL_CHARS:]
