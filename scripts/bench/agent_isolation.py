"""What a start of `agent_command` costs at each level of `agent_isolation`.

    python -m scripts.bench.agent_isolation [--levels none,process,bubblewrap,gateway] [--episodes 50] [--at-once 1,8]
                                            [--command /bin/true] [--image IMAGE] [--json FILE] [--quick]

Commands that write ten small files (`--command`), which are kept, as the sampler starts them: from the making of the command's
folder to its removal. Processor time is that of this process and of all that ended below it, in ms per
episode; an engine's of containers is not in it. `gateway` is bubblewrap with `agent_network: gateway`; `container` needs
`--image`, and Docker's command line.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sampler.config import SamplerConfig
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.child import run_command
from sampler.gateway.server import OpenAttempt
from scripts.bench.results import run_parts
from scripts.bench.sampler_under_test import Row
from shared.processes.mongod import free_port

NAMED = {"gateway": {"agent_isolation": "bubblewrap", "agent_network": "gateway"}}
ATTEMPT: dict[str, Any] = {
    "model": "main",
    "messages": [{"content": "What is 2+2?"}],
    "payload": {"query": "What is 2+2?"},
}
WARM = 3


def configured(options: argparse.Namespace, level: str) -> SamplerConfig:
    of_level = NAMED.get(level, {"agent_isolation": level})
    container = {"agent_container": {"image": options.image}} if level == "container" else {}
    none = {
        "run": "bench",
        "db_connection_string": "none",
        "model_name_or_path": "none",
        "agent_command": options.command,
    }
    agent = {"sampler": "sampler.gateway.agent_sampler:AgentSampler"}
    return SamplerConfig.model_validate(none | agent | of_level | container)


async def measured(options: argparse.Namespace, level: str, at_once: int, folder: Path) -> Row:
    config, sandbox = configured(options, level), AgentSandbox()
    isolated = None if level == "none" else sandbox
    attempt, numbers = OpenAttempt(f"http://127.0.0.1:{free_port()}", "sk-none"), iter(range(WARM + options.episodes))
    if isolated is not None:
        await isolated.open(config)

    async def one(number: int) -> None:
        kept = folder / f"{level}-{at_once}-{number}"
        ended = await run_command(options.command, attempt, **ATTEMPT, kept=kept, isolated=isolated)
        if ended.status != 0:
            raise SystemExit(f"{level}: {options.command!r} ended with status {ended.status}: {ended.said}")

    async def player() -> None:
        for number in numbers:
            await one(number)

    for _ in range(WARM):
        await one(next(numbers))
    began, cpu_began_s = time.monotonic(), used_s()
    async with asyncio.TaskGroup() as players:
        for _ in range(at_once):
            players.create_task(player())
    cpu_s, lasted_s = used_s() - cpu_began_s, time.monotonic() - began
    await sandbox.close()
    return {
        "level": level,
        "at once": at_once,
        "CPU ms": cpu_s / options.episodes * 1e3,
        "ms": lasted_s * at_once / options.episodes * 1e3,
        "episodes/s": options.episodes / lasted_s,
    }


def used_s() -> float:
    """Of this process and of all below it that have ended."""
    both = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


async def run(options: argparse.Namespace) -> dict[str, Sequence[Row]]:
    with tempfile.TemporaryDirectory(prefix="bench_isolation") as folder:
        rows = [
            await measured(options, level, int(at_once), Path(folder))
            for at_once in options.at_once.split(",")
            for level in options.levels.split(",")
        ]
    return {"starts": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="none,process,bubblewrap,gateway", help="(default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=50, help="of each level (default: %(default)s)")
    parser.add_argument("--at-once", default="1,8", help="commands (default: %(default)s)")
    parser.add_argument("--command", default="/bin/sh -c 'for n in 0 1 2 3 4 5 6 7 8 9; do echo $n > file$n; done'")
    parser.add_argument("--image", default="", help="of `container`")
    run_parts(parser, run, 100, levels="none,process", episodes=2, at_once="1")


if __name__ == "__main__":
    main()
