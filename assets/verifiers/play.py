"""An agent command that plays one episode on a server of verifiers' environments: `python play.py tcp://127.0.0.1:5000`.

The task's `metadata.task_data` is the environment's own row. The server asks the model itself, at Tandem's gateway, whose address
and key go with the request; its reward is then told to the gateway. What fails there is a status other than 0, so the episode is
played again and has no score.
"""

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path

from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve import EnvClient
from verifiers.v1.types import SamplingConfig


async def main(address: str) -> None:
    task = json.loads(Path(os.environ["TANDEM_TASK_FILE"]).read_text(encoding="utf-8"))  # noqa: ASYNC240 - nothing else runs
    key = os.environ["OPENAI_API_KEY"]
    # The server reads api_key_var from its own environment: the episode's key goes in a header, which the gateway reads first.
    gateway = EvalClientConfig(
        base_url=os.environ["OPENAI_BASE_URL"], api_key_var="UNSET", headers={"x-goog-api-key": key}
    )
    client = EnvClient(address)
    try:
        episode = await client.run(gateway, os.environ["OPENAI_MODEL"], SamplingConfig(), task["metadata"]["task_data"])
    finally:
        await client.close()
    if episode.errors or not episode.traces or any(not trace.ok for trace in episode.traces):
        sys.exit(f"the environment failed: {episode.errors or [trace.errors for trace in episode.traces]}")
    tell(key, sum(trace.reward for trace in episode.traces) / len(episode.traces))


def tell(key: str, score: float) -> None:
    body = json.dumps({"score": score}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(os.environ["TANDEM_SCORE_URL"], body, headers), timeout=60):
        pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
