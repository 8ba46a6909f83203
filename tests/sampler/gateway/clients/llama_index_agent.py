"""LlamaIndex's FunctionAgent with OpenAI's dialect; with `stream`, as a stream, its default."""

import asyncio
import os
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    served = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    model = OpenAILike(
        model=os.environ["OPENAI_MODEL"], is_chat_model=True, is_function_calling_model=True, max_retries=0, **served
    )
    agent = FunctionAgent(tools=[add], llm=model, system_prompt="You add.", streaming="stream" in sys.argv)
    print(await agent.run(sys.stdin.read()))


asyncio.run(main())
