"""`accelerate launch` for trainers of one machine: their rendezvous listens on loopback.

    python -m trainer.launch --config_file assets/fsdp2.yml --num_processes 2 -m trainer --run RUN ...

Takes the arguments of `accelerate launch`. torch's store, through which the processes meet, has no authentication, and torch
opens it on every network of the machine. With `--num_machines` above 1 it is torch's: the other machines must reach it.
SIGTERM and Ctrl-C end it without a traceback; its exit status is then 128 and the signal's number. If a process fails, the
last line is the cause, and the exit status is that of the process that failed first, or 1 where a signal ended it.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program()

import os
import sys

from accelerate.commands.launch import main as accelerate_launch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters, static_tcp_rendezvous
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from shared.names import LOOPBACK_HOSTS
from shared.processes.out_of_memory import out_of_memory_kills
from trainer.process.ending import of_launched
from trainer.process.listening import listening_store

LOOPBACK = LOOPBACK_HOSTS[0]
INTERFACE = "lo"  # its name on Linux
torch_rendezvous = static_tcp_rendezvous.create_rdzv_handler


class LoopbackRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous, with a store that listens on loopback."""

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            self._store = listening_store(LOOPBACK, self.master_port, self.timeout.total_seconds())
        return super().next_rendezvous()


def rendezvous(params: RendezvousParameters) -> StaticTCPRendezvous:
    """Of one machine the one above, else torch's."""
    static = torch_rendezvous(params)
    assert isinstance(static, StaticTCPRendezvous)
    if params.max_nodes > 1:
        return static
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # else both take the address of the host's name
        os.environ.setdefault(variable, INTERFACE)
    limit_s = int(static.timeout.total_seconds())
    return LoopbackRendezvous(LOOPBACK, static.master_port, static.rank, static.world_size, static.run_id, limit_s)


def main() -> None:
    static_tcp_rendezvous.create_rdzv_handler = rendezvous
    kills = out_of_memory_kills() or 0
    try:
        accelerate_launch()
    except SignalException as exc:
        sys.exit(128 + exc.sigval)
    except ChildFailedError as exc:
        status, cause = of_launched(exc, (out_of_memory_kills() or 0) - kills)
        sys.stderr.write(f"trainer.launch: {cause}\n")
        sys.exit(status)
    except OSError as exc:  # of its --config_file
        sys.stderr.write(f"trainer.launch: {exc}\n")
        sys.exit(2)


if __name__ == "__main__":
    run_command(main)
