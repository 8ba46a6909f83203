"""What a GPU must show, as a table of expected and measured values: python -m scripts.gpu_check [--gpus 8] [--device cuda]

    versions    the torch that is there, 2.11 or newer, and the device
    tests       those marked `gpu`: each test function, and how many of its cases pass
    layouts     the same steps over data, layers and tokens, on 2 or 8 GPUs, against one
    steps       memory and time of a step of a model with 405 million parameters

What is expected stands in expected.json, written before. It needs no network and ends after `--minutes`; what was not reached is
a row without a value. The exit status is 0 where every row that this device can show is as expected. `--device hostgpu` runs what
needs no Triton on the GPU of host memory (tests/hostgpu), and a small model. `python -m scripts.gpu_check.bundle` packs the
Python packages that a machine with nothing but torch lacks. Run it in the root of the checkout.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))
HOST = "hostgpu"


@dataclass(frozen=True, slots=True)
class Shown:
    """A row. `right` None: this device cannot show it, or the time was over."""

    what: str
    expected: str
    measured: str
    right: bool | None


class Clock:
    """The time that is left for all checks."""

    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60 * minutes

    def left_s(self) -> float:
        return self._end - time.monotonic()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, choices=[int(count) for count in EXPECTED["layouts"]])
    parser.add_argument("--device", default="cuda", choices=["cuda", HOST])
    parser.add_argument("--minutes", type=float, default=10.0, help="the checks end then (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    parser.add_argument("--report", type=Path, help="write the rows there, as JSON")
    args = parser.parse_args(arguments)
    clock = Clock(args.minutes)
    rows: list[Shown] = []
    for part in args.only:
        for row in PARTS[part](args, clock):
            rows.append(row)
            sys.stderr.write(f"{row.what}: {row.measured}\n")
    _print(rows)
    if args.report:
        values = [{name: getattr(row, name) for name in Shown.__slots__} for row in rows]
        args.report.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return 0 if rows and all(row.right is not False for row in rows) and any(row.right for row in rows) else 1


def _print(rows: Sequence[Shown]) -> None:
    table = Table("what", "expected", "measured", "")
    for row in rows:
        table.add_row(row.what, row.expected, row.measured, {True: "ok", False: "WRONG", None: "-"}[row.right])
    Console(width=150).print(table)


# ------------------------------------------------------------------ parts


def versions(args: argparse.Namespace, clock: Clock) -> Iterator[Shown]:
    code = (
        "import json, torch, transformers; there = torch.cuda.is_available(); "
        "print(json.dumps({'torch': torch.__version__, 'transformers': transformers.__version__, 'cuda': torch.version.cuda, "
        "'gpus': [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []}))"
    )
    status, printed = _run(["-c", code], args, clock)
    if status != 0:
        yield Shown("torch and transformers", "imported", printed[-300:], False)
        return
    found = json.loads(printed.splitlines()[-1])
    version = tuple(map(int, re.findall(r"\d+", found["torch"])[:2]))
    least = tuple(map(int, EXPECTED["torch"].split(".")))
    measured = f"{found['torch']}, transformers {found['transformers']}"
    yield Shown("torch", f"{EXPECTED['torch']} or newer", measured, version >= least)
    if args.device == "cuda":
        names = ", ".join(f"{count} x {name}" for name, count in Counter(found["gpus"]).items()) or "none"
        yield Shown("GPUs", f"{args.gpus} or more", names, len(found["gpus"]) >= args.gpus)


def tests(args: argparse.Namespace, clock: Clock) -> Iterator[Shown]:
    for file, functions in EXPECTED["tests"].items():
        chosen = [name for name in functions if not (args.device == HOST and name in EXPECTED["needs_triton"])]
        passed: dict[str, int] = {}
        if chosen and clock.left_s() > 0:
            passed = _passed(file, chosen, args, clock)
        for name, count in functions.items():
            if name not in chosen:
                yield Shown(_sentence(name), f"{count} passed", "not shown: needs Triton", None)
            elif name not in passed and clock.left_s() <= 0:
                yield Shown(_sentence(name), f"{count} passed", "the time was over", None)
            else:
                yield Shown(
                    _sentence(name), f"{count} passed", f"{passed.get(name, 0)} passed", passed.get(name, 0) == count
                )


def _passed(file: str, functions: Sequence[str], args: argparse.Namespace, clock: Clock) -> dict[str, int]:
    """How many cases of each test function passed, also where the time ended in the middle."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        options = [
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "--timeout",
            "300",
            file,
            "-k",
            " or ".join(functions),
        ]
        _, printed = _run(options, args, clock, log)
    sys.stderr.write(
        "".join(f"{line}\n" for line in printed.splitlines() if line.startswith(("E  ", "FAILED", "ERROR")))
    )
    return Counter(re.findall(r"::(\w+)(?:\[.*\])? PASSED", printed))


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def layouts(args: argparse.Namespace, clock: Clock) -> Iterator[Shown]:
    chosen = EXPECTED["layouts"][str(2 if args.device == HOST else args.gpus)]
    most = 1e-9 if args.device == HOST else EXPECTED["layouts_differ_at_most"]
    for experts in (False, True):
        what = f"layouts {', '.join(chosen)}" + (" of experts" if experts else "")
        if clock.left_s() <= 0:
            yield Shown(what, f"parameters differ by {most:g} at most", "the time was over", None)
            continue
        options = ["--reference_device", "cpu"] if args.device == HOST else []
        options += ["--device", args.device, "--layouts", ",".join(chosen), "--most", str(most), "--steps_only"]
        status, printed = _run(
            ["-m", "tests.trainer.layouts", *options, *(["--experts"] if experts else [])], args, clock
        )
        differences = [float(text) for text in re.findall(r"\b\d\.\de[-+]\d\d\b", printed)]
        measured = f"{max(differences):.1e}" if differences else printed[-300:]
        yield Shown(what, f"parameters differ by {most:g} at most", measured, status == 0)


def steps(args: argparse.Namespace, clock: Clock) -> Iterator[Shown]:
    for setting, bounds in EXPECTED["steps"].items():
        if clock.left_s() <= 0:
            yield Shown(f"step, {setting}", str(bounds), "the time was over", None)
            continue
        size = ["--small"] if args.device == HOST else []
        status, printed = _run(
            ["-m", "scripts.gpu_check.step", "--device", args.device, "--setting", setting, *size], args, clock
        )
        if status != 0:
            yield Shown(f"step, {setting}", "computed", printed[-300:], False)
            continue
        measured: dict[str, Any] = json.loads(printed.splitlines()[-1])
        for name, (least, most) in bounds.items():
            device, _, value = name.rpartition(": ")
            comparable = not size and device in measured["device"]
            within = least <= measured[value] <= most if comparable else None
            yield Shown(f"step, {setting}: {value}", f"{least:g} to {most:g}", f"{measured[value]:.3g}", within)


PARTS = {"versions": versions, "tests": tests, "layouts": layouts, "steps": steps}


# ------------------------------------------------------------------ programs


def _run(arguments: Sequence[str], args: argparse.Namespace, clock: Clock, log: Path | None = None) -> tuple[int, str]:
    """Exit status and output of Python with these arguments; 124 where the time was over."""
    environment = os.environ | {"TANDEM_TEST_DEVICE": args.device, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as folder:
        path = log or Path(folder) / "log"
        with path.open("w") as output:
            try:
                command = [sys.executable, *arguments]
                limit_s = max(clock.left_s(), 1.0)
                status = subprocess.run(
                    command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=limit_s
                ).returncode
            except subprocess.TimeoutExpired:
                status = 124
        return status, path.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
