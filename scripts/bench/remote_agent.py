"""The agent of an in-process gateway's measurement: hands its conversation to `scripts.bench.agent_clients`, in another process.

So the sampler's process has the gateway's cost, and one short exchange for each episode.
"""

import asyncio
import json
import os

from sampler.gateway.agent_sampler import AgentTask

CLIENTS_PORT = "BENCH_CLIENTS_PORT"


async def agent(task: AgentTask) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[CLIENTS_PORT]))
    offer = {"url": task.url, "api_key": task.api_key, "model": task.model, "messages": task.messages}
    writer.write(json.dumps(offer).encode() + b"\n")
    if await reader.readline() != b"done\n":
        raise RuntimeError("the conversation broke off; its process has printed why")
    writer.close()
