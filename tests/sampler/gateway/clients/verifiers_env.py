"""verifiers' own chat loop (its `null` harness) with tools of a `Toolset`; its interception server relays to OpenAI's dialect.

verifiers runs that program in an environment that uv makes. Here it runs in this one, which has what it needs.
"""

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import SubprocessConfig, SubprocessRuntime


class Adder(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class AddTask(vf.Task):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adder(vf.ToolsetConfig())]


async def main() -> None:
    program = CHAT_PROGRAM_SOURCE.encode()
    path = Path(SubprocessRuntime.scripts_dir) / f"{hashlib.sha256(program).hexdigest()}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(program)
    SubprocessRuntime._interpreters[str(path)] = sys.executable
    client = {"type": "eval", "base_url": os.environ["OPENAI_BASE_URL"], "api_key_var": "OPENAI_API_KEY"}
    seat = {
        "harness": {"id": "null"},
        "runtime": SubprocessConfig(),
        "model": os.environ["OPENAI_MODEL"],
        "client": client,
    }
    agent = vf.make_agent(vf.AgentConfig.model_validate(seat))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the tool server is `python -m verifiers_env`
    from verifiers_env import AddTask

    trace = await agent.run(AddTask(vf.TaskData(prompt=sys.stdin.read())))
    if not trace.ok:
        sys.exit(str(trace.errors))
    print(trace)


if __name__ == "__main__":
    if "VF_CONFIG" in os.environ:
        Adder.run()
    else:
        asyncio.run(main())
