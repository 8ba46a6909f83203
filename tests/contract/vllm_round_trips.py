"""Two processes that notify each other by vLLM's conditions, as its core and a worker do. Runs in vLLM's Python.

python -m tests.contract.vllm_round_trips 5000        prints how many of the waits ended without their notification
"""

import multiprocessing
import sys
import tempfile
import time
from typing import Any

import zmq  # type: ignore[import-not-found]  # of vLLM, which is not installed where types are checked

from sampler.engine.vllm.waiting import WaitingCondition

LONGEST_MS = 1000  # of one wait: the other's answer takes microseconds, a busy machine some milliseconds
SUBSCRIBED_S = 0.5  # ZeroMQ acknowledges no subscription: what is sent before it has arrived is lost
OURS, THEIRS, READY, LOST = range(4)


def wait(condition: Any, counters: Any, index: int, beyond: int) -> int:
    """Until the other's count is above `beyond`. Returns the waits that ended by their limit."""
    lost = 0
    while counters[index] <= beyond:
        begun = time.monotonic()
        condition.wait(LONGEST_MS)
        # A wait may be cut short by the notification of the round before.
        lost += time.monotonic() - begun > 0.9 * LONGEST_MS / 1000 and counters[index] > beyond
    return lost


def answer(counters: Any, question: str, reply: str, rounds: int) -> None:
    context = zmq.Context()
    writer, reader = WaitingCondition(False, context, reply), WaitingCondition(True, context, question)
    time.sleep(SUBSCRIBED_S)  # ZeroMQ acknowledges no subscription
    counters[READY] = 1
    for done in range(rounds):
        counters[LOST] += wait(reader, counters, OURS, done)
        counters[THEIRS] = done + 1
        writer.notify()


def main(rounds: int) -> None:
    counters = multiprocessing.get_context("spawn").Array("q", 4, lock=False)
    with tempfile.TemporaryDirectory() as folder:
        question, reply = f"ipc://{folder}/question", f"ipc://{folder}/reply"
        context = zmq.Context()
        writer = WaitingCondition(False, context, question)
        other = multiprocessing.get_context("spawn").Process(target=answer, args=(counters, question, reply, rounds))
        other.start()
        reader = WaitingCondition(True, context, reply)
        while not counters[READY]:
            assert other.is_alive(), "the other process has ended"
            time.sleep(0.01)  # a counter in shared memory has no notification
        time.sleep(SUBSCRIBED_S)  # ZeroMQ acknowledges no subscription
        lost = 0
        for done in range(rounds):
            counters[OURS] = done + 1
            writer.notify()
            lost += wait(reader, counters, THEIRS, done)
            if lost + counters[LOST] >= 5:
                break
        other.kill()
        print(f"rounds={done + 1} lost={lost + counters[LOST]}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
