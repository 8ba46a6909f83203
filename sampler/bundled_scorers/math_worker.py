"""Compares mathematical expressions, by our reading and math-verify: `python -m sampler.bundled_scorers.math_worker`.

sympy may run for hours, or fill the memory, on an answer such as `9^{9^{9^9}}`, and a thread cannot be stopped. So this
program reads one JSON request per line and writes one JSON line per reply:

    {"expected": ["\\\\frac{1}{2}"], "answer": "0.5", "cpu_s": 10}   ->   {"read": true}   {"equal": true}

The first line says that the expected answers were read: what fails before it is theirs (`unusable`), what fails after it the
answer's (`undecided`). `cpu_s` is *processor* time of each part, so that the machine's load does not change scores. If
a single long computation exceeds it, the kernel ends the process (SIGXCPU).
"""

import contextlib
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TypeVar

from sampler.bundled_scorers.maths import TooHard, decide, unusable
from sampler.bundled_scorers.maths.by_math_verify import by_math_verify

MAX_MEMORY_BYTES = 3 * 1024**3  # of each worker


T = TypeVar("T")


class OutOfTime(BaseException):
    """Not an `Exception`: math-verify and sympy catch those."""


def main() -> None:
    logging.disable(logging.CRITICAL)  # math-verify warns about its missing time-out; this program has one
    with contextlib.suppress(ValueError, OSError):  # macOS does not support the limit; processor time still bounds it
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _out_of_time)
    for line in sys.stdin:
        for reply in replies(json.loads(line)):
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


def replies(request: dict[str, object]) -> Iterator[dict[str, object]]:
    cpu_s, expected = float(str(request["cpu_s"])), request["expected"]
    assert isinstance(expected, list)
    gold = [str(one) for one in expected]
    problem, why = _within(cpu_s, lambda: next((reason for one in gold if (reason := unusable(one))), ""))
    if problem is None or problem:
        yield {"unusable": why or problem}
        return
    yield {"read": True}
    equal, why = _within(cpu_s, lambda: _is_one_of(str(request["answer"]), gold))
    yield {"equal": equal} if equal is not None else {"undecided": why}


def _is_one_of(answer: str, gold: Sequence[str]) -> bool:
    """Raises TooHard, if it equals none of those that could be compared with."""
    hard: TooHard | None = None
    for one in gold:
        try:
            equal = decide(answer, one)
            if equal or (equal is None and by_math_verify(answer, one)):
                return True
        except TooHard as exc:
            hard = exc
    if hard is not None:
        raise hard
    return False


def _within(cpu_s: float, work: Callable[[], T]) -> tuple[T | None, str]:
    """The result, or None and why there is none."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard_s = int(used.ru_utime + used.ru_stime + 1.5 * cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (hard_s, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        return work(), ""
    except OutOfTime:
        return None, f"not decided within {cpu_s:g} s of processor time"
    except TooHard as exc:
        return None, f"not decided: {exc} with too many digits"
    except (MemoryError, RecursionError, OverflowError) as exc:
        return None, f"not decided: {type(exc).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise OutOfTime


if __name__ == "__main__":
    main()
