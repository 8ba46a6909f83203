"""Threads of engines and trainers on processors.

The matrices of a small model are too small to share: one thread each. A larger model's trainers have the cores of the machine
between them, and its engines half of the cores; threads that wait sleep instead of spinning. OMP_NUM_THREADS in the launcher's
environment, and a service's own setting, win.

Throughput of a model of 135 million parameters in float32 on two cores (AVX2), in tokens/s:

                                          one thread    two threads
    forward and backward, alone               56             88
    two processes of it at once, each         53             55
    decoding of 32 requests, alone            97            106
    two processes of it at once, each         87             74
"""

import os
from collections.abc import Sequence

from sampler.engine.local.memory import FLOAT_BYTES, SMALL_MODEL, weights_bytes
from tandem.launch.places import ROOT
from tandem.launch.settings import LaunchConfig

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}


def engine_threads(policies: Sequence[LaunchConfig]) -> dict[str, str]:
    """Variables of each engine that computes on this machine's processors; none where one thread is best."""
    engines = sum(len(config.kinds) + len(config.serve_versions) for config in policies if config.starts_engine)
    return _threads(policies, _cores() // 2, engines)


def trainer_threads(policies: Sequence[LaunchConfig]) -> dict[str, str]:
    """The same of each trainer's process."""
    return _threads(policies, _cores(), sum(config.processes_here for config in policies if config.trains))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _threads(policies: Sequence[LaunchConfig], cores: int, processes: int) -> dict[str, str]:
    if any(variable in os.environ for variable in VARIABLES) or any(config.placed for config in policies):
        return {}
    if max(weights_bytes(ROOT / config.model) for config in policies) < SMALL_MODEL * FLOAT_BYTES:
        return {}
    threads = cores // max(1, processes)
    return dict.fromkeys(VARIABLES, str(threads)) | SLEEPING if threads > 1 else {}
