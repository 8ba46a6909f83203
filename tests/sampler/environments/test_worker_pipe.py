"""The pipe to a worker: requests that it cannot read yet wait outside of it."""

import asyncio
from typing import Any

from sampler.environments.worker_process import WorkerProcess
from tests.sampler.boxes import PATIENCE_S
from tests.sampler.environments.services import WORLDS

REQUEST_BYTES = 1 << 20


async def test_requests_to_a_busy_worker_wait_outside_of_its_pipe() -> None:
    worker = await WorkerProcess.started("", {"guess": f"{WORLDS}:Guess"})
    try:
        for number in range(20):
            await worker.ask(
                {"op": "start", "session": str(number), "kind": "guess", "index": 7, "task": {}}, PATIENCE_S
            )

        def say(number: int, text: str) -> "asyncio.Task[Any]":
            message = {"role": "assistant", "content": text}
            request = {"op": "interact", "session": str(number), "messages": [message]}
            return asyncio.create_task(worker.ask(request, PATIENCE_S))

        busy = say(0, "sleep 2")
        others = [say(number, "x" * REQUEST_BYTES) for number in range(1, 20)]
        most = 0
        while not busy.done():
            assert worker._process.stdin is not None
            most = max(most, worker._process.stdin.transport.get_write_buffer_size())
            await asyncio.sleep(0.01)  # while the worker sleeps
        assert REQUEST_BYTES / 2 < most < 3 * REQUEST_BYTES
        assert [step["reward"] for step in await asyncio.gather(*others)] == [-0.25] * 19
    finally:
        await worker.end()
