"""AutoGen's AssistantAgent with OpenAI's dialect; with `stream`, as a stream."""

import asyncio
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

ABILITIES = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    model = OpenAIChatCompletionClient(
        model=os.environ["OPENAI_MODEL"],
        base_url=os.environ["OPENAI_BASE_URL"],
        model_info={**ABILITIES, "family": "unknown"},
    )
    agent = AssistantAgent("adder", model, tools=[add], max_tool_iterations=5, model_client_stream="stream" in sys.argv)
    async for event in agent.run_stream(task=sys.stdin.read()):
        print(event)


asyncio.run(main())
