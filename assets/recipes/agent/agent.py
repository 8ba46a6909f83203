"""An agent of PydanticAI, as its users write it: a function becomes a tool, and the framework asks the model, calls and answers.

Tandem starts it for each episode. OPENAI_BASE_URL is the gateway, so every request of the framework is sampled by the policy.
"""

import ast
import operator
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.usage import UsageLimits

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(expression: str) -> str:
    """Calculates/evaluates the given expression.

    Numbers of more than 15 digits are rounded.
    """
    try:
        return f"{value(ast.parse(expression, mode='eval').body):g}"
    except (SyntaxError, TypeError, KeyError, ZeroDivisionError, OverflowError, RecursionError) as exc:
        return f"error: {type(exc).__name__}"


def value(node: ast.expr) -> float:
    """Of numbers and the four operations; KeyError or TypeError for anything else."""
    if isinstance(node, ast.BinOp):
        return SIGNS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    raise TypeError(ast.dump(node))


if __name__ == "__main__":
    agent = Agent(OpenAIChatModel(os.environ["OPENAI_MODEL"]), tools=[calculate])
    try:
        print(agent.run_sync(sys.stdin.read(), usage_limits=UsageLimits(request_limit=3)).output)
    except AgentRunError as exc:  # the model never answered, or not in a form that the framework reads: its score is 0
        print(f"no answer: {exc}")
