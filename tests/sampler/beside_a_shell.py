"""`python -m tests.sampler.beside_a_shell DB_CONNECTION_STRING SETTINGS COMMAND…`: what a sampler's shell tool answers.

SETTINGS is JSON: `conceal`, and those of `isolated`. In COMMAND, PARENT is the sampler's process id.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from sampler.core.tools import ToolServer, ToolSession
from sampler.core.tools.isolation import isolated
from shared.processes.concealment import conceal

SHELL = Path(__file__).parent / "tool_servers" / "shell.py"


async def main(connection: str, settings: str, *commands: str) -> None:
    given = json.loads(settings)
    if given.get("conceal", True):
        conceal([connection])
    shell = ToolServer(name="shell", command=sys.executable, args=(str(SHELL),))
    servers = isolated([shell], given.get("user"), given.get("sandbox", "off"))
    async with ToolSession(servers) as session:
        answers = [
            (await session.call("sh", {"command": command.replace("PARENT", str(os.getpid()))})).text
            for command in commands
        ]
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
