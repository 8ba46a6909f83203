"""vLLM's processes on a CPU wait for each other without using it.

vLLM's core and its workers pass every step over queues in shared memory. For a second after each message a reader asks for the
next one again and again (0.32.0, `SpinCondition`): the core all the while that the workers compute. Where they have GPUs, that is
a core that nobody needs. Here it is taken from the model, and from a trainer beside it: two cores, four processes that wanted
them, the bundled model, 8 and 32 requests: 253 and 664 tokens/s, without it 406 and 1,247; the core's processor time is a sixth.
A reader that asks once and then waits for the writer's signal is vLLM's own way after that second.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.device_communicators import shm_broadcast
from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class WaitingCondition(shm_broadcast.SpinCondition):  # type: ignore[misc]  # vLLM is not installed where types are checked
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "busy_loop_s": 0.0})


def wait_for_signals() -> None:
    """In this process, before vLLM makes its queues."""
    shm_broadcast.SpinCondition = WaitingCondition


class WaitingExecutor(MultiprocExecutor):  # type: ignore[misc]  # as above
    """Made in vLLM's core, where no other code of ours runs."""

    def _init_executor(self) -> None:
        wait_for_signals()
        super()._init_executor()
