"""AgentRL's own client plays our service. Runs in a Python that has `agentrl-eval`. Usage: python agentrl_client.py URL"""

import asyncio
import json
import sys

from agentrl.eval.session.controller import ControllerClient


async def main(url: str) -> None:
    client = ControllerClient(url, proxy_url=None)
    told: dict[str, object] = {"indices": len(await client.get_indices("guess"))}
    session, first = await client.start_sample("guess", 7)
    told["first"] = first.messages[0]["content"]
    await client.renew(session)
    wrong = await client.interact(session, [{"role": "assistant", "content": "3"}])
    right = await client.interact(session, [{"role": "assistant", "content": "7"}])
    told |= {"wrong": [wrong.status, wrong.reward], "right": [right.status, right.finish, right.reward, right.metrics]}
    session, _ = await client.start_sample("guess", 5, {"any": 1})
    await client.cancel(session)
    try:
        await client.interact(session, [{"role": "assistant", "content": "5"}])
    except RuntimeError as exc:
        told["cancelled"] = str(exc)
    await client.close()
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
