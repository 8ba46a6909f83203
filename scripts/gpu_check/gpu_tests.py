"""The part `tests`: those marked `gpu` that fit the number of GPUs, a row for each function with its number of cases."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from scripts.gpu_check.programs import GpuCheck, Shown

FILE_LIMIT_S = 400.0  # of one file


def gpu_tests(check: GpuCheck) -> Iterator[Shown]:
    """On one GPU all that need no more; on several those that need several."""
    for file, functions in check.expected["tests"].items():
        named = {name: count for name, count in functions.items() if check.match in _sentence(name)}
        obstacles = {name: _obstacle(check, name) for name in named}
        chosen = [name for name in named if not obstacles[name]]
        outcomes = _outcomes(check, file, chosen) if chosen and check.remaining_s() > 0 else Counter[tuple[str, str]]()
        for name, count in named.items():
            if obstacles[name]:
                yield Shown(_sentence(name), f"{count} passed", f"not shown: {obstacles[name]}", None)
                continue
            passed, skipped = outcomes[name, "PASSED"], outcomes[name, "SKIPPED"]
            others = sum(of for (test, outcome), of in outcomes.items() if test == name) - passed - skipped
            measured = (
                f"{passed} passed"
                + (f", {skipped} skipped" if skipped else "")
                + (f", {others} failed" if others else "")
            )
            if check.remaining_s() <= 0 and passed + skipped + others < count:
                yield check.unreached(_sentence(name), f"{count} passed")
            elif skipped and passed + skipped == count and not others:
                yield Shown(_sentence(name), f"{count} passed", measured, None)
            else:
                yield Shown(_sentence(name), f"{count} passed", measured, passed == count and not others)


def _obstacle(check: GpuCheck, name: str) -> str | None:
    """Why a test cannot run here; None: it can."""
    needed = check.expected["needs_gpus"].get(name, 1)
    if check.device == "cpu":
        return "needs a GPU, or --device hostgpu"
    if check.on_host and name in check.expected["needs_sglang"]:
        return "needs SGLang on a GPU"
    if check.on_host and name in check.expected["needs_triton"]:
        return "needs Triton"
    if needed > check.gpus:
        return f"needs {needed} GPUs"
    if check.gpus > 1 and needed == 1 and not check.on_host:
        return "of the check of one GPU"
    return None


def _outcomes(check: GpuCheck, file: str, functions: Sequence[str]) -> Counter[tuple[str, str]]:
    """Cases by (function, PASSED, SKIPPED, FAILED or ERROR), also where the time ended in the middle."""
    options = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "--timeout", "300", file, "-k", " or ".join(functions)]
    _, printed = check.run(options, FILE_LIMIT_S if not check.on_host else 1800.0)
    lines = [line for line in printed.splitlines() if line.startswith(("E  ", "FAILED", "ERROR"))]
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    found = re.findall(r"::(\w+)(?:\[.*\])? (PASSED|SKIPPED|FAILED|ERROR)\b", printed)
    return Counter((name, outcome) for name, outcome in found if name in functions)


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")
