"""DSPy's ReAct, whose requests and replies are texts with marked fields; `stream`: as a stream."""

import asyncio
import os
import sys

import dspy


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    served = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    dspy.configure(lm=dspy.LM(f"openai/{os.environ['OPENAI_MODEL']}", cache=False, num_retries=0, **served))
    agent = dspy.ReAct("question -> answer", tools=[add], max_iters=5)
    if "stream" not in sys.argv:
        print(agent(question=sys.stdin.read()).answer)
        return
    listeners = [dspy.streaming.StreamListener(signature_field_name="answer")]
    async for piece in dspy.streamify(agent, stream_listeners=listeners)(question=sys.stdin.read()):
        print(piece)


asyncio.run(main())
