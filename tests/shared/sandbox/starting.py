"""Sandboxed processes for tests."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from shared.sandbox import IsolationLevel, Launch, Limits, SandboxedProcess, discard, new_folder, start
from shared.sandbox.levels import problem

PATIENCE_S = 120.0
LOCAL_LEVELS = [IsolationLevel.PROCESS, IsolationLevel.BUBBLEWRAP]


def needs(level: IsolationLevel) -> None:
    if why := problem(level):
        pytest.skip(f"{level}: {why}")


@dataclass
class Ended:
    status: int
    output: str
    errors: str
    exceeded: str


@asynccontextmanager
async def session_folder() -> AsyncIterator[Path]:
    """A session's folder, in a state folder of its own."""
    state = Path(tempfile.mkdtemp(prefix="tandem-test-"))
    os.chmod(state, 0o711)
    folder = new_folder(state)
    try:
        yield folder
        await discard(folder)
        assert os.listdir(state) == []
    finally:
        shutil.rmtree(state, ignore_errors=True)


async def ran(
    level: IsolationLevel, folder: Path, *command: str, limits: Limits | None = None, **options: object
) -> Ended:
    """Run `command` to its end."""
    launch = Launch(command, folder, limits=limits or Limits(), **options)  # type: ignore[arg-type]  # options of any kind
    process = await start(launch, level)
    try:
        return await ended(process)
    finally:
        await process.stop()


async def ended(process: SandboxedProcess) -> Ended:
    async with asyncio.timeout(PATIENCE_S):
        output = await process.stdout.read()
        status = await process.wait()
    return Ended(status, output.decode("utf-8", "replace"), process.stderr, process.exceeded)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def inside(process: SandboxedProcess) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)
