"""An agent of PydanticAI, as its users write it: a function becomes a tool, and the framework asks the model, calls and answers.

Tandem starts it for each episode. OPENAI_BASE_URL is the gateway, so every request of the framework is sampled by the policy.
"""

import os
import sys

from arithmetic import calculate
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.usage import UsageLimits

if __name__ == "__main__":
    agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"]), tools=[calculate])
    try:
        print(agent.run_sync(sys.stdin.read(), usage_limits=UsageLimits(request_limit=3)).output)
    except AgentRunError as exc:  # the model never answered, or not in a form that the framework reads: its score is 0
        print(f"no answer: {exc}")
