"""The pipe to a worker: requests that it cannot read yet wait outside of it. A worker needs no package."""

import asyncio
import subprocess
import sys
from pathlib import Path
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


def test_a_worker_and_its_worlds_are_loaded_by_a_python_without_packages() -> None:
    """`-S`: as `worker_python` of a fresh virtual environment; an image of lists is written there too."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sampler.environments.worker\n"
        "from sampler.environments.adapters import environment_class\n"
        "from sampler.environments.checked_step import checked\n"
        "for provider in ('gymnasium:CartPole-v1', 'openenv:http://h', 'textarena:Nim-v0', sys.argv[2] + ':Guess'):\n"
        "    environment_class(provider)\n"
        "from sampler.environments.environment import Step, user_shows\n"
        "print(checked(Step(user_shows('a', {'type': 'image', 'image': [[7]]})))['messages'][0]['content'][1]['type'])\n"
        "assert not {'pydantic', 'numpy', 'PIL'} & sys.modules.keys()"
    )
    command = [sys.executable, "-S", "-c", program, str(Path(__file__).parents[3]), str(WORLDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "image_url\n"), done.stderr
