"""The interception server of verifiers 0.4.0 alone, for `scripts.bench.gateway --verifiers PYTHON`, whose environment has it.

    PYTHON scripts/bench/verifiers_server.py --engine-url URL --model-path DIR --port PORT [--tokens 20]

As in a training run: its train client with the Qwen3 renderer, which keeps ids from turn to turn. `POST /claim` begins a
rollout, as `Rollout` of verifiers does; `/finish` ends it. Their cost is part of the process, as with our gateway; but nothing is
stored or scored. Imports nothing of this repository.
"""

import argparse
import asyncio

import verifiers.v1 as vf
from aiohttp import web
from renderers import Qwen3RendererConfig
from verifiers.v1.clients.client import ModelContext
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import SamplingConfig

QUERY = "What is 2+2?"
KEY_AT = len("Bearer ")


class Rollouts:
    def __init__(self, server: InterceptionServer, options: argparse.Namespace) -> None:
        self._server = server
        client = TrainClientConfig(
            base_url=f"{options.engine_url}/v1",
            renderer=Qwen3RendererConfig(),
            renderer_model_name=options.model_path,
        )
        self._context = ModelContext("main", client, SamplingConfig(temperature=1.0, max_tokens=options.tokens))
        self._open: dict[str, str] = {}

    async def claim(self, request: web.Request) -> web.Response:
        await request.read()
        task = TraceTask(type="Task", data=TaskData(prompt=QUERY))
        trace = Trace(task=task, agent=AgentInfo(config=vf.AgentConfig()))
        key, self._open[key] = self._server.register(RolloutSession(ctx=self._context, trace=trace))
        return web.json_response({"url": self._server.base_url, "api_key": key, "model": "main"})

    async def finish(self, request: web.Request) -> web.Response:
        await request.read()
        key = request.headers["Authorization"][KEY_AT:]
        self._server.unregister(key, self._open.pop(key))
        return web.json_response({"ok": True})


async def serve(options: argparse.Namespace) -> None:
    async with InterceptionServer() as server:
        rollouts = Rollouts(server, options)
        app = web.Application()
        app.router.add_post("/claim", rollouts.claim)
        app.router.add_post("/finish", rollouts.finish)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", options.port, backlog=2048).start()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-url", required=True)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=20)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
