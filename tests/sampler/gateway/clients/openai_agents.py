"""The OpenAI Agents SDK over Responses, its default, or with `chat` over Chat Completions; with `stream`, as a stream."""

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    set_tracing_disabled(True)
    kind = OpenAIChatCompletionsModel if "chat" in sys.argv else OpenAIResponsesModel
    model = kind(model=os.environ["OPENAI_MODEL"], openai_client=AsyncOpenAI())
    agent = Agent(name="adder", instructions="You add.", tools=[add], model=model)
    if "stream" in sys.argv:
        running = Runner.run_streamed(agent, sys.stdin.read())
        async for _ in running.stream_events():
            pass
        print(running.final_output)
    else:
        print((await Runner.run(agent, sys.stdin.read())).final_output)


asyncio.run(main())
