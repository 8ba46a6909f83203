"""PydanticAI: `openai` or `anthropic` as the first argument; `stream` as the second."""

import asyncio
import os
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent


async def main() -> None:
    kind = sys.argv[1]
    name = os.environ["TANDEM_MODEL"]
    if kind == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel

        model = AnthropicModel(name)
    else:
        from pydantic_ai.models.openai import OpenAIChatModel

        model = OpenAIChatModel(name)
    agent = Agent(model, system_prompt="You add.")

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    prompt = sys.stdin.read()

    async def seen(context: object, events: AsyncIterable[object]) -> None:
        async for event in events:
            print(event)

    print((await agent.run(prompt, event_stream_handler=seen if "stream" in sys.argv else None)).output)


asyncio.run(main())
