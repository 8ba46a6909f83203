"""Runs an agent's command: a child process in a directory of its own, which ends with the episode, all descendants included.

It is given, of the sampler's environment, only what tool servers get (PATH, HOME, …), and the gateway's address and key in
the variables that clients read. Its output is kept in files of its directory; their ends are part of an error.
"""

import asyncio
import json
import logging
import os
import pwd
import shlex
import shutil
import tempfile
from asyncio import StreamReader
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sampler.gateway.server import OpenAttempt
from sampler.tools.isolation import Sandbox, wrapped
from sampler.tools.server_process import ServerProcess, end_process, start_process
from sampler.tools.servers import ToolServer
from shared.errors import ConfigError

log = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 4 * 1024 * 1024  # kept of each stream, at its beginning
MAX_TAIL_CHARS = 4000  # shown of each in an error
MAX_KEPT_BYTES = 256 * 1024 * 1024  # of a kept directory
PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """`stdout`, `stderr`: their ends."""

    status: int
    stdout: str
    stderr: str


Started = Callable[[list[str]], Awaitable[list[str]]]  # from a command's words to those that are started


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
) -> EndedCommand:
    """`kept`: the directory to keep. `user`, `sandbox`: as for tool servers. Raises ConfigError for what cannot be run."""
    prompt = "\n\n".join(str(message["content"]) for message in messages)
    with _directory(kept) as folder:
        task_file = folder / "task.json"
        task = {**payload, "prompt": prompt, "messages": list(messages), "model": model}
        task_file.write_text(json.dumps(task, ensure_ascii=False), encoding="utf-8")
        words = {"{query}": str(payload["query"]), "{prompt}": prompt, "{task_file}": str(task_file)}
        parts = _replaced(command, words)
        name, *args = parts if started is None else await started(parts)
        env = _variables(attempt, model) | {"TANDEM_TASK_FILE": str(task_file)}
        if user is not None:
            found = pwd.getpwnam(user)
            for path in (folder, task_file):
                os.chown(path, found.pw_uid, found.pw_gid)
        try:
            agent = ToolServer("agent", command=name, args=tuple(args), env=env, cwd=str(folder))
            child = await start_process(wrapped(agent, user, sandbox))
        except (OSError, ValueError) as exc:
            raise ConfigError(f"agent_command: {exc}") from exc
        try:
            return await _until_it_ends(child, prompt.encode(), folder)
        finally:
            await asyncio.shield(end_process(child))


def _replaced(command: str, words: Mapping[str, str]) -> list[str]:
    """The command's words, with placeholders replaced inside them: a query never becomes several words."""
    try:
        parts = shlex.split(command)
    except ValueError as exc:
        raise ConfigError(f"agent_command is {command!r}: {exc}") from exc
    if not parts:
        raise ConfigError("agent_command is empty; expected a command")
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


@contextmanager
def _directory(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="tandem-agent-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    folder = kept.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
    if size > MAX_KEPT_BYTES:
        log.warning("agent's directory deleted: %s has %d bytes, more than %d", folder, size, MAX_KEPT_BYTES)
        shutil.rmtree(folder, ignore_errors=True)


async def _until_it_ends(child: ServerProcess, told: bytes, folder: Path) -> EndedCommand:
    process = child.process
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(_tell(process.stdin, told), name="agent stdin")
        out = group.create_task(_kept(process.stdout, folder / "stdout.txt"), name="agent stdout")
        err = group.create_task(_kept(process.stderr, folder / "stderr.txt"), name="agent stderr")
    return EndedCommand(await process.wait(), out.result(), err.result())


async def _tell(stdin: asyncio.StreamWriter, told: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # a command that does not read it
        stdin.write(told)
        await stdin.drain()
    stdin.close()


async def _kept(pipe: StreamReader, file: Path) -> str:
    """Write the beginning to the file; return the end."""
    tail = b""
    left = MAX_OUTPUT_BYTES
    with file.open("wb") as kept:
        while piece := await pipe.read(PIECE_BYTES):
            kept.write(piece[:left])
            left = max(0, left - len(piece))
            tail = (tail + piece)[-4 * MAX_TAIL_CHARS :]  # a character has at most 4 bytes
    return tail.decode(errors="replace").strip()[-MAX_TAIL_CHARS:]
