"""Threads of engines and trainers on processors.

The matrices of a small model are too small to share: one thread each. A larger model's engines have the cores of the machine
between them, and so have its trainers: the two wait for each other much of the time, and threads that wait sleep instead of
spinning, so that side by side they share the cores. OMP_NUM_THREADS in the launcher's environment, and a service's own setting,
win.
"""

import os
from collections.abc import Sequence

from sampler.engine.local.memory import FLOAT_BYTES, SMALL_MODEL, weights_bytes
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}


def shared_cores(policies: Sequence[LaunchConfig]) -> dict[str, str]:
    """Variables of the engines and trainers that compute on this machine's processors; none where one thread each is best."""
    if any(variable in os.environ for variable in VARIABLES) or any(config.placed for config in policies):
        return {}
    if max(weights_bytes(ROOT / config.model) for config in policies) < SMALL_MODEL * FLOAT_BYTES:
        return {}
    engines = sum(len(config.engine) + len(config.serve_versions) for config in policies if config.starts_engine)
    trainers = sum(config.processes_here for config in policies if config.trains)
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // max(1, engines, trainers))
    return dict.fromkeys(VARIABLES, str(threads)) | SLEEPING if threads > 1 else {}
