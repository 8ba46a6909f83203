"""The OpenAI Agents SDK over Chat Completions."""

import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(model=os.environ["OPENAI_MODEL"], openai_client=AsyncOpenAI())
print(
    Runner.run_sync(
        Agent(name="adder", instructions="You add.", tools=[add], model=model), sys.stdin.read()
    ).final_output
)
