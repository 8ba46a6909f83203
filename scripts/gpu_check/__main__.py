"""What a GPU must show, as a table of expected and measured values: python -m scripts.gpu_check [--gpus 8] [--device cuda]

    versions    the torch that is there, 2.11 or newer, and the device
    tests       those marked `gpu`: each test function, and how many of its cases pass
    layouts     the same steps over data, layers, tokens, stages and experts, on 2 or 8 GPUs against one, on one against a CPU
    steps       memory and time of a step of a model with 405 million parameters

What is expected stands in expected.json, written before. It needs no network and ends after `--minutes`; what was not reached is
a row without a value. The exit status is 0 where every row that this device can show is as expected. `--device hostgpu` runs what
needs no Triton on the GPU of host memory (tests/hostgpu), and a small model; `--device cpu` runs the layouts over gloo.
`python -m scripts.gpu_check.bundle` packs it with the Python packages that a machine with nothing but torch lacks.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.gpu_check.gpu_tests import gpu_tests
from scripts.gpu_check.layouts import layouts
from scripts.gpu_check.programs import GpuCheck, Shown
from tests import hostgpu

EXPECTED = Path(__file__).parent / "expected.json"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, choices=[1, 2, 8])
    parser.add_argument("--device", default="cuda", choices=["cuda", hostgpu.NAME, "cpu"])
    parser.add_argument("--minutes", type=float, default=10.0, help="the checks end then (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    parser.add_argument("--match", default="", help="tests and layouts alone whose row has these words")
    parser.add_argument(
        "--expected", type=Path, default=EXPECTED, help="what must be measured (default: expected.json)"
    )
    parser.add_argument("--report", type=Path, help="write the rows there, as JSON")
    args = parser.parse_args(arguments)
    expected = json.loads(args.expected.read_text(encoding="utf-8"))
    check = GpuCheck(args.device, args.gpus, expected, time.monotonic() + 60 * args.minutes, args.match)
    rows: list[Shown] = []
    for part in args.only:
        for row in PARTS[part](check):
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
    counts = Counter(row.right for row in rows)
    sys.stdout.write(f"{counts[True]} as expected, {counts[False]} wrong, {counts[None]} not shown\n")


def versions(check: GpuCheck) -> Iterator[Shown]:
    code = (
        "import json, torch, transformers; there = torch.cuda.is_available(); "
        "print(json.dumps({'torch': torch.__version__, 'transformers': transformers.__version__, 'cuda': torch.version.cuda, "
        "'gpus': [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []}))"
    )
    status, printed = check.run(["-c", code])
    if status != 0:
        yield Shown("torch and transformers", "imported", printed[-300:], False)
        return
    found = json.loads(printed.splitlines()[-1])
    version = tuple(map(int, re.findall(r"\d+", found["torch"])[:2]))
    least = tuple(map(int, check.expected["torch"].split(".")))
    measured = f"{found['torch']}, transformers {found['transformers']}"
    yield Shown("torch", f"{check.expected['torch']} or newer", measured, version >= least)
    if not check.on_host:
        names = ", ".join(f"{count} x {name}" for name, count in Counter(found["gpus"]).items()) or "none"
        yield Shown("GPUs", f"{check.gpus} or more", names, len(found["gpus"]) >= check.gpus)


def steps(check: GpuCheck) -> Iterator[Shown]:
    if check.gpus > 1 and not check.on_host:
        return
    for setting, bounds in check.expected["steps"].items():
        what = f"step, {setting}"
        if check.device == "cpu":
            yield Shown(what, str(bounds), "not shown: needs a GPU, or --device hostgpu", None)
            continue
        if check.remaining_s() <= 0:
            yield check.unreached(what, str(bounds))
            continue
        size = ["--small"] if check.on_host else []
        status, printed = check.run(
            ["-m", "scripts.gpu_check.step", "--device", check.device, "--setting", setting, *size]
        )
        if status != 0:
            yield Shown(what, "computed", printed[-300:], None if check.remaining_s() <= 0 else False)
            continue
        measured: dict[str, Any] = json.loads(printed.splitlines()[-1])
        yield Shown(f"{what}: computed", f"{measured['tokens']} tokens", f"by {measured['attention']}", True)
        for name, (least, most) in bounds.items():
            device, _, value = name.rpartition(": ")
            comparable = not size and device in measured["device"]
            within = least <= measured[value] <= most if comparable else None
            yield Shown(f"{what}: {value}", f"{least:g} to {most:g}", f"{measured[value]:.3g}", within)


PARTS = {"versions": versions, "layouts": layouts, "tests": gpu_tests, "steps": steps}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
