"""The least loop that plays chats by the openai SDK, run by a Python that has the package and nothing of Tandem:

    /path/of/a/venv/bin/python scripts/bench/openai_loop.py URL --at-once 64 --turns 10 [--logprobs]

Each of `--at-once` conversations asks `/v1/chat/completions` `--turns` times, with its whole history as messages, then begins
anew. `--logprobs`: asks for those of the sampled tokens, which a trainer needs, and keeps them. It stores nothing, renders
nothing and counts no token. Runs until it is ended.
"""

import argparse
import asyncio
import importlib
from typing import Any


async def converse(client: Any, turns: int, options: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "What is 2+2?"}]
    logprobs: list[list[float]] = []
    for _ in range(turns):
        completion = await client.chat.completions.create(model="policy", messages=messages, **options)
        choice = completion.choices[0]
        if choice.logprobs is not None:
            logprobs.append([token.logprob for token in choice.logprobs.content])
        messages += [{"role": "assistant", "content": choice.message.content}, {"role": "user", "content": "Go on."}]


async def converse_on(client: Any, turns: int, options: dict[str, Any]) -> None:
    while True:
        await converse(client, turns, options)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--logprobs", action="store_true")
    arguments = parser.parse_args()
    options: dict[str, Any] = {"max_tokens": 64, "temperature": 1.0}
    options |= {"logprobs": True} if arguments.logprobs else {}
    client = importlib.import_module("openai").AsyncOpenAI(base_url=f"{arguments.url}/v1", api_key="none")
    await asyncio.gather(*(converse_on(client, arguments.turns, options) for _ in range(arguments.at_once)))


if __name__ == "__main__":
    asyncio.run(main())
