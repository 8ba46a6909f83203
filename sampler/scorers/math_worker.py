"""Compares mathematical expressions with math-verify, in a separate process: `python -m sampler.scorers.math_worker`.

sympy may run for hours, or fill the memory, on an answer such as `9^{9^{9^9}}`, and a thread cannot be stopped. So this
program reads one JSON request per line and writes one JSON line per reply:

    {"expected": ["\\\\frac{1}{2}"], "answer": "0.5", "cpu_s": 10}   ->   {"equal": true}   or   {"undecided": "…"}

`cpu_s` is *processor* time, so that the machine's load does not change scores. If Python code exceeds it, the reply is
"undecided"; if a single long computation exceeds it, the kernel ends the process (SIGXCPU).
"""

import contextlib
import json
import logging
import resource
import signal
import sys
from types import FrameType

from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

MAX_MEMORY_BYTES = 4 * 1024**3
_EXTRACTION = (LatexExtractionConfig(), ExprExtractionConfig())


class OutOfTime(BaseException):
    """Not an `Exception`: math-verify and sympy catch those."""


def main() -> None:
    logging.disable(logging.CRITICAL)  # math-verify warns about its missing time-out; this program has one
    with contextlib.suppress(ValueError, OSError):  # macOS does not support the limit; processor time still bounds it
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _out_of_time)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def answer(request: dict[str, object]) -> dict[str, object]:
    cpu_s = float(str(request["cpu_s"]))
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard_s = int(used.ru_utime + used.ru_stime + 1.5 * cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (hard_s, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        given = _parsed(str(request["answer"]))
        expected = request["expected"]
        assert isinstance(expected, list)
        equal = any(verify(_parsed(str(one)), given, timeout_seconds=None) for one in expected)
    except OutOfTime:
        return {"undecided": f"not decided within {cpu_s:g} s of processor time"}
    except (MemoryError, RecursionError, OverflowError) as exc:
        return {"undecided": f"not decided: {type(exc).__name__}"}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return {"equal": bool(equal)}


def _parsed(text: str) -> object:
    """math-verify searches prose for math; an answer is all math, and LaTeX is only recognized between dollars."""
    found = parse(f"${text}$", _EXTRACTION, parsing_timeout=None) if "$" not in text else None
    return found or parse(text, _EXTRACTION, parsing_timeout=None)


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise OutOfTime


if __name__ == "__main__":
    main()
