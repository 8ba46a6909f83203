"""Threads and memory allocation of engines and trainers on processors.

The matrices of a small model are too small to share: one thread each. Of a larger model the trainers have the machine's cores
between them, and so do the engines; threads that wait sleep instead of spinning, so that the two side by side lose nothing.
OMP_NUM_THREADS in the launcher's environment, and a service's own setting, win.

Throughput of a model of 135 million parameters in float32 on two cores (AVX2), in tokens/s:

                                          one thread    two threads
    forward and backward, alone               60             96
    decoding of 32 requests, alone            97            131
    two engines at once, each             104 and 99     91 and 100
    decoding while a trainer runs         72 and 78      85 and 84

glibc gives large blocks back to the kernel at each free and gets them again, as zeroed pages, at the next allocation: 300,000
page faults a training step. So it keeps them here: the step takes 0.94 of the time and the same memory at its peak.
"""

import os
from collections.abc import Sequence

from sampler.engine.local.memory import FLOAT_BYTES, SMALL_MODEL, weights_bytes
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
}  # bytes; other C libraries ignore them


def engine_threads(policies: Sequence[LaunchConfig]) -> dict[str, str]:
    """Variables of each engine that computes on this machine's processors; none where one thread is best."""
    engines = sum(len(config.kinds) + len(config.serve_versions) for config in policies if config.starts_engine)
    return _variables(policies, engines)


def trainer_threads(policies: Sequence[LaunchConfig]) -> dict[str, str]:
    """The same of each trainer's process."""
    return _variables(policies, sum(config.processes_here for config in policies if config.trains))


def _variables(policies: Sequence[LaunchConfig], processes: int) -> dict[str, str]:
    if any(config.placed for config in policies):
        return {}
    if max(weights_bytes(ROOT / config.model) for config in policies) < SMALL_MODEL * FLOAT_BYTES:
        return {}
    kept = {variable: value for variable, value in KEPT.items() if variable not in os.environ}
    if any(variable in os.environ for variable in VARIABLES):
        return kept
    threads = len(os.sched_getaffinity(0)) // max(1, processes)
    return kept | dict.fromkeys(VARIABLES, str(threads)) | SLEEPING if threads > 1 else kept
