"""A container for each start, by the command line of Docker (or of an engine that has the same, such as podman)."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from shared.sandbox.launch import SandboxLaunch

LABEL = "tandem.mcp.folder"  # whose value is the session's folder
ENGINE = "docker"
_ANSWER_S = 20.0
_TMP_SHARE_OF_MEMORY = 4
_ENGINE_VARIABLES = (
    "PATH",
    "HOME",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "DOCKER_CONFIG",
)


def run_command(launch: SandboxLaunch, name: str, user: int | None, readable: Sequence[str]) -> list[str]:
    """`docker run …`: the process that has the container's stdin and stdout. Names of variables only, since values are
    secrets; but `HOME` with its value: the engine's client has its own."""
    limits, options = launch.limits, launch.container
    cpu_s = max(1, int(limits.cpu_s))
    tmpfs = f"rw,nosuid,nodev,size={max(1, limits.memory_mb // _TMP_SHARE_OF_MEMORY)}m,mode=1777"
    owner = user if user is not None else os.getuid()
    return [
        *(
            ENGINE,
            "run",
            "-i",
            "--rm",
            "--init",
            "--pull",
            "never",
            "--name",
            name,
            "--label",
            f"{LABEL}={launch.folder}",
        ),
        *("--hostname", "sandbox", "--read-only", "--tmpfs", f"/tmp:{tmpfs}", "--shm-size", "16m"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", f"{owner}:{owner}", "--ipc", "private"),
        *("--network", options.network if launch.network else "none"),
        *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m", "--cpus", f"{options.cpus:g}"),
        *("--pids-limit", str(limits.processes)),
        *("--ulimit", f"nofile={limits.open_files}", "--ulimit", f"fsize={limits.file_mb * 1024 * 1024}"),
        *("--ulimit", f"cpu={cpu_s}:{cpu_s + 1}", "--ulimit", "core=0"),
        *(("--runtime", options.runtime) if options.runtime else ()),
        *(part for path in readable for part in ("--mount", f"type=bind,src={path},dst={path},readonly")),
        *("--mount", f"type=bind,src={launch.folder},dst={launch.folder}", "--workdir", str(launch.folder)),
        *(part for name, value in environment(launch).items() for part in ("--env", _variable(name, value))),
        options.image,
        *launch.command,
    ]


def _variable(name: str, value: str) -> str:
    return f"{name}={value}" if name == "HOME" else name


def environment(launch: SandboxLaunch) -> dict[str, str]:
    """The container's. `docker run --env NAME` takes the values from its own."""
    return {"HOME": str(launch.folder), "TMPDIR": "/tmp", **launch.environment}


def engine_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _ENGINE_VARIABLES if name in os.environ}


def remove_command(name: str) -> list[str]:
    return [shutil.which(ENGINE) or ENGINE, "rm", "--force", "--volumes", name]


@cache
def engine_answers() -> str:
    """Empty, or why there is no engine."""
    if shutil.which(ENGINE) is None:
        return f"{ENGINE} is not on the PATH"
    try:
        process = subprocess.run(
            [ENGINE, "version", "--format", "{{.Server.Version}}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its engine did not answer within {_ANSWER_S:g} s"
    return "" if process.returncode == 0 else process.stderr.strip() or "its engine does not answer"


async def left_over(state_folder: Path) -> list[str]:
    """Ids of containers, also ended ones, of sessions whose folder is in `state_folder`."""
    if engine_answers():
        return []
    listed = await _output_of(
        "ps", "--all", "--no-trunc", "--filter", f"label={LABEL}", "--format", f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}'
    )
    pairs = [line.split(" ", 1) for line in listed.splitlines() if " " in line]
    return [container for container, folder in pairs if Path(folder).parent == state_folder]


async def remove(containers: Sequence[str]) -> None:
    if containers:
        await _output_of("rm", "--force", "--volumes", *containers)


async def _output_of(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        ENGINE, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables
    )
    try:
        async with asyncio.timeout(_ANSWER_S):
            output, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return ""
    return output.decode("utf-8", "replace")
