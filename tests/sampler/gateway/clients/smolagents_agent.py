"""smolagents' tool-calling agent."""

import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


model = OpenAIServerModel(
    os.environ["OPENAI_MODEL"], os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
print(ToolCallingAgent(tools=[add], model=model, max_steps=6).run(sys.stdin.read()))
