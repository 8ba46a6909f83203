"""A crew of one agent of CrewAI with OpenAI's dialect; with `stream`, as a stream."""

import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


served = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = LLM(model=f"openai/{os.environ['OPENAI_MODEL']}", stream="stream" in sys.argv, **served)
agent = Agent(role="adder", goal="Add numbers.", backstory="You add.", tools=[add], llm=model)
task = Task(description="{question}", expected_output="a number", agent=agent)
print(Crew(agents=[agent], tasks=[task]).kickoff(inputs={"question": sys.stdin.read()}))
