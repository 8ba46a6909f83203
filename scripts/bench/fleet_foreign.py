"""The rollouts of `scripts.bench.fleet` in Agent Lightning's store, run by the Python of an environment that has it.

    ENVIRONMENT/bin/python -m scripts.bench.fleet_foreign SETTINGS     one line of JSON, after `seconds` in the middle of it

    enqueue ─▶ dequeue ─▶ a span for each turn ─▶ attempt succeeded ─▶ its spans are read, as a trainer reads them

One process, the store in its memory (no `address`: as it is by default) or in MongoDB. A span bears what a turn bears in
Tandem: the new tokens of its prompt, the reply's tokens and log-probs. Its store has no groups, so nothing is settled. Imports
nothing of Tandem, whose dependencies that environment lacks.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from typing import Any

FILLED = 500  # rollouts at once
NONE_QUEUED_S = 0.05


class ForeignRunners:
    """`places` rollouts at once."""

    def __init__(self, store: Any, settings: dict[str, Any]) -> None:
        self._store, self._settings = store, settings
        self._types = importlib.import_module("agentlightning.types")
        self._resource = self._types.OtelResource(attributes={}, schema_url="")
        self.rollouts = 0
        self.claims_ms: list[float] = []

    async def fill(self) -> None:
        """More rollouts than are played."""
        request = self._types.EnqueueRolloutRequest(input={"query": "What is 2+2?", "answer": "4"}, mode="train")
        for _ in range(0, self._settings["rollouts"], FILLED):
            await self._store.enqueue_many_rollouts([request] * FILLED)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for place in range(self._settings["places"]):
                group.create_task(self._place(f"runner-{place}"))

    async def _place(self, worker: str) -> None:
        while True:
            began = time.monotonic()
            claimed = await self._store.dequeue_rollout(worker_id=worker)
            if claimed is None:
                await asyncio.sleep(NONE_QUEUED_S)
                continue
            self.claims_ms.append((time.monotonic() - began) * 1e3)
            rollout, attempt = claimed.rollout_id, claimed.attempt.attempt_id
            for turn in range(self._settings["turns"]):
                await self._store.add_span(self._span(rollout, attempt, turn))
            await self._store.update_attempt(rollout, attempt, status="succeeded")
            spans = await self._store.query_spans(rollout, attempt)
            if len(spans) != self._settings["turns"]:
                raise RuntimeError(f"rollout {rollout}: {len(spans)} spans; expected {self._settings['turns']}")
            self.rollouts += 1
            await asyncio.sleep(0)  # the store in memory never waits, and others have their turn

    def _span(self, rollout: str, attempt: str, turn: int) -> Any:
        tokens = self._settings["tokens"]
        now = time.time()
        return self._types.Span(
            rollout_id=rollout,
            attempt_id=attempt,
            sequence_id=turn + 1,
            trace_id=f"{turn:032x}",
            span_id=f"{turn + 1:016x}",
            parent_id=None,
            name="openai.chat.completion",
            status=self._types.TraceStatus(status_code="OK"),
            attributes={
                "prompt_token_ids": list(range(self._settings["prompts"][min(turn, 1)])),
                "response_token_ids": list(range(tokens)),
                "logprobs": [-0.5] * tokens,
                "gen_ai.prompt.0.content": "What is 2+2? " * (2 if turn else 15),
                "gen_ai.completion.0.content": "so " * tokens,
                "reward": 1.0,
            },
            events=[],
            links=[],
            start_time=now,
            end_time=now,
            context=None,
            parent=None,
            resource=self._resource,
        )


async def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Figures of the middle of the run. Ends with the process: its tasks are not waited for."""
    if settings["address"]:
        module = importlib.import_module("agentlightning.store.mongo")
        store = module.MongoLightningStore(mongo_uri=settings["address"], database_name=settings["database"])
    else:
        store = importlib.import_module("agentlightning.store.memory").InMemoryLightningStore()
    runners = ForeignRunners(store, settings)
    await runners.fill()
    running = asyncio.create_task(runners.run())
    await _played(runners, running, settings["places"])
    runners.claims_ms.clear()
    rollouts, used, began = runners.rollouts, time.process_time(), time.monotonic()
    print("begun", flush=True)
    await asyncio.wait([running], timeout=settings["seconds"])
    figures = {
        "rollouts": runners.rollouts - rollouts,
        "cpu_s": time.process_time() - used,
        "took_s": time.monotonic() - began,
        "claims_ms": runners.claims_ms,
    }
    if running.done():
        running.result()
    return figures


async def _played(runners: ForeignRunners, running: "asyncio.Task[None]", rollouts: int) -> None:
    while runners.rollouts < rollouts:
        await asyncio.wait([running], timeout=NONE_QUEUED_S)
        if running.done():
            running.result()


async def main() -> None:
    print(json.dumps(await measure(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # thousands of tasks and a client's pool end with the process


if __name__ == "__main__":
    asyncio.run(main())
