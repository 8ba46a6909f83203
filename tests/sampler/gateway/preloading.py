"""Runs an agent's script as a fork of a process that has its packages loaded (`agent_preload`), or without."""

import asyncio
import shlex
from pathlib import Path

import psutil

from sampler.gateway.child import EndedCommand, run_command
from sampler.gateway.preload import PreloadedInterpreter
from sampler.gateway.server import OpenAttempt


async def run(
    words: list[str], preloaded: PreloadedInterpreter | None, modules: list[str], user: str | None = None
) -> EndedCommand:
    started = None if preloaded is None else lambda parts: preloaded.command(parts, modules, user)
    return await run_command(
        shlex.join(words),
        OpenAttempt("http://127.0.0.1:1", "sk-none"),
        model="main",
        messages=[{"role": "user", "content": "What?"}],
        payload={"query": "What?"},
        kept=None,
        user=user,
        started=started,
    )


def script(folder: Path, text: str) -> str:
    (file := folder / "agent.py").write_text(text)
    return str(file)


async def processes_of(file: Path) -> list[psutil.Process]:
    """Those whose ids a script wrote there."""

    def written() -> list[str]:
        return file.read_text().split() if file.exists() else []

    async with asyncio.timeout(60):
        while len(await asyncio.to_thread(written)) < 2:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.05)
    return [psutil.Process(int(pid)) for pid in written()]
