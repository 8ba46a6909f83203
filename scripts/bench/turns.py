"""Processes that answer requests by turns, so that a busy machine is busy for all of them.

Their threads sleep while they wait. With OpenMP's default they spin, for the others' turns and for each other: on two cores that
other programs used too, a step of two threads took 5 times the CPU seconds (8.4 for 1.7).
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tandem.launch.threads import SLEEPING

PATIENCE_S = 1800.0


@contextmanager
def processes_by_turns(
    targets: Mapping[str, tuple[Callable[..., None], tuple[Any, ...]]],
) -> Iterator[dict[str, Connection]]:
    """{name: pipe} of a process for each target, which gets its end of the pipe before its arguments."""
    context = multiprocessing.get_context("spawn")
    children, pipes = [], {}
    for variable, value in SLEEPING.items():  # read when a child loads OpenMP; this process has loaded it
        os.environ.setdefault(variable, value)
    try:
        for name, (target, arguments) in targets.items():
            pipes[name], theirs = context.Pipe()
            child = context.Process(target=target, args=(theirs, *arguments))
            child.start()
            theirs.close()
            children.append(child)
        yield pipes
    finally:
        for child in children:
            child.join(10)
            child.kill()


def answer(pipe: Connection, request: str) -> tuple[Any, ...]:
    """RuntimeError when the process is silent, EOFError when it has ended."""
    pipe.send(request)
    if not pipe.poll(PATIENCE_S):
        raise RuntimeError(f"no answer to {request!r} within {PATIENCE_S:.0f} s")
    reply: tuple[Any, ...] = pipe.recv()
    return reply
