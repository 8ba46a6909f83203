"""Two ranks whose machines differ, under `accelerate launch`: python -m tests.trainer.sharing_child RUN DB DEVICE DEVICE

DEVICE: the setting `shared_device` of rank 0 and of rank 1; "-": none. Rank 0 prints what the lease is in the step. A rank that
waits for the other one for minutes is ended.
"""

import os
import signal
import sys

from shared.documents.states import LeaseKind
from shared.errors import ConfigError
from shared.store.leases import lease_id
from trainer.process.ending import end_process
from trainer.process.parallel import parallel_session
from trainer.process.store_bridge import StoreBridge
from trainer.settings.sharing import SharingSettings
from trainer.step.shared_device import TrainerDevice

LIMIT_S = 150


def main() -> int:
    run, database, *devices = sys.argv[1:]
    signal.alarm(LIMIT_S)
    with parallel_session("cpu") as parallel, StoreBridge(database, run) as bridge:
        own = devices[parallel.rank]
        settings = SharingSettings(shared_device=None if own == "-" else own)
        try:
            device = TrainerDevice(bridge, settings, parallel, f"rank {parallel.rank}")
        except ConfigError as exc:
            sys.stdout.write(f"refused: {exc}\n")
            return 3
        for step in range(2):
            with device.held():
                parallel.barrier()
                if parallel.is_main and {*devices} != {"-"}:
                    lease = bridge(bridge.store.leases.get(lease_id(LeaseKind.GPU, max(devices))))
                    sys.stdout.write(f"step {step}: {lease.state} attempt {lease.attempt}\n")
                parallel.barrier()
    return 0


if __name__ == "__main__":
    status = main()
    if status:
        os._exit(status)
    end_process(0)
