"""The part `layouts`: the same float64 steps over data, layers, tokens, stages and experts, against those of one process."""

import re
from collections.abc import Iterator

from scripts.gpu_check.programs import OVER, GpuCheck, Shown
from tests import hostgpu

ALONE = "1"
LAYOUT_LIMIT_S = 180.0  # of one layout, and the process that it is compared with; on a GPU most of it is the start
OPTIONS = {"dense": [], "experts": ["--experts"], "replayed experts": ["--experts", "--replay"]}


def layouts(check: GpuCheck) -> Iterator[Shown]:
    """`data x tp x cp x pp x ep`. One process is compared with a CPU, every layout with one process of its own device; on the
    GPU of host memory, whose numbers are the CPU's, with a CPU too.
    """
    expected = check.expected["layouts"]
    for model, chosen in expected["of_gpus"][str(check.gpus)].items():
        for layout in chosen:
            what = f"layout {layout}, {model}"
            alone = layout == ALONE
            most = expected["differ_at_most"][check.device]
            if alone and not check.on_host:
                most = expected["cuda_differs_from_a_cpu_at_most"]
            bound = f"parameters differ by {most:g} at most from " + ("a CPU's" if alone else "one process's")
            if check.match not in what:
                continue
            yield (
                check.unreached(what, bound)
                if check.remaining_s() <= 0
                else _compared(check, layout, model, what, bound, most)
            )


def _compared(check: GpuCheck, layout: str, model: str, what: str, bound: str, most: float) -> Shown:
    chosen = layout if layout == ALONE else f"{ALONE},{layout}"
    options = ["--device", check.device, "--layouts", chosen, "--most", str(most), "--steps_only", *OPTIONS[model]]
    if check.device == hostgpu.NAME or layout == ALONE:
        options += ["--reference_device", "cpu"]
    status, printed = check.run(
        ["-m", "tests.trainer.layouts", *options], LAYOUT_LIMIT_S if not check.on_host else 600.0
    )
    rows = re.findall(r"│ ([\dx]+) +│ +\d+ +│ (\d\.\de[-+]\d\d) +│", printed)
    if not rows:
        why = "did not end" if status == OVER else f"failed: {printed[-300:]}"
        return Shown(what, bound, why, None if check.remaining_s() <= 0 else False)
    return Shown(what, bound, rows[-1][1], status == 0)
