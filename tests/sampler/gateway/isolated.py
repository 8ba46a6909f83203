"""Episodes whose agent is a command in a sandbox."""

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sampler.gateway.agent_sampler import AgentSampler
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.child import run_command
from sampler.gateway.server import OpenAttempt
from sampler.settings import SamplerConfig
from shared.sandbox.launch import IsolationLevel
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.sampler.gateway.agents import ScriptedEngine, an_episode
from tests.shared.sandbox.escapes import IMAGE
from tests.shared.sandbox.starting import LOCAL_LEVELS

ONE = ["<answer>4</answer>"]


levels = pytest.mark.parametrize("level", LOCAL_LEVELS)


@asynccontextmanager
async def isolated(
    store: Store, level: str, script: Path, *arguments: str, **options: Any
) -> AsyncIterator[AgentSampler]:
    """An episode of the script. At its end nothing of it is left."""
    command = shlex.join([sys.executable, str(script), *arguments])
    engine = options.pop("engine", None) or ScriptedEngine(ONE)
    given = {"agent_command": command, "agent_isolation": str(level)} | options
    async with an_episode(store, engine, None, **given) as sampler:
        sandbox = sampler.resources.opened.of(AgentSandbox)
        await sandbox.open()
        state = sandbox._state
        assert state is not None
        try:
            yield sampler
            assert os.listdir(state) == [".lock"]
        finally:
            await sandbox.close()


def script_of(folder: Path, text: str) -> Path:
    (file := folder / "agent.py").write_text(text)
    return file


def configured(**options: Any) -> SamplerConfig:
    values = {"run": "r", "db_connection_string": "x", "model_name_or_path": MODEL} | options
    return SamplerConfig.model_validate(values | {"sampler": "sampler.gateway.agent_sampler:AgentSampler"})


STUBBORN = "trap '' TERM INT HUP; sleep 600 & setsid sleep 600 & echo ready > ready; while :; do sleep 600; done"


async def hangs(level: str) -> None:
    """A sampler with two commands that do not end."""
    command = f'/bin/sh -c "{STUBBORN}"'
    options = {"agent_container": {"image": IMAGE}} if level == IsolationLevel.CONTAINER else {}
    config = configured(agent_command=command, agent_isolation=level, **options)
    sandbox = AgentSandbox(config)
    await sandbox.open()
    assert config.agents.command is not None
    words = config.agents.command.agent_command
    given = {"model": "main", "messages": [{"content": "?"}], "payload": {"query": "?"}, "kept": None}
    attempt = OpenAttempt("http://127.0.0.1:1", "sk-none")
    await asyncio.gather(*(run_command(words, attempt, **given, isolated=sandbox) for _ in range(2)))
