"""A real Slurm on this machine, for a check: munge, slurmctld and two slurmd, with ports, key and folders of its own. Needs root.

Debian's package `slurm-wlm`. Two nodes share the machine: node1 and node2, which mean 127.0.0.1 to what runs on them. Partition
`low` may be preempted by partition `high`, which requeues its jobs after their grace time.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.processes.mongod import free_port

NODES = ("node1", "node2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
GRACE_S = 60
CPUS = 4  # that Slurm is told of; the machine may have fewer

CONFIG = """\
ClusterName=tandemcheck
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
SlurmctldPort={ctld}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs={cpus} RealMemory=2000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs={cpus} RealMemory=2000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


def is_installed() -> bool:
    return all(shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for program in PROGRAMS)


class SlurmCluster:
    """Use as a context manager; its exit ends the daemons by pid, and with slurmd every job step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Self:
        for name in ("state", "run", "log"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "run").chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = {name: free_port() for name in ("ctld", "first", "second")}
        given = {"host": socket.gethostname(), "folder": self.folder, "cpus": CPUS, "grace": GRACE_S}
        (self.folder / "slurm.conf").write_text(CONFIG.format(**given, **ports))
        (self.folder / "hosts").write_text("127.0.0.1 localhost " + " ".join((*NODES, socket.gethostname())) + "\n")
        try:
            self._start_all(key)
        except BaseException:
            self._stop()
            raise
        return self

    def _start_all(self, key: Path) -> None:
        run = self.folder / "run"
        own = [f"--key-file={key}", f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid"]
        own += [f"--log-file={self.folder}/log/munged.log", f"--seed-file={run}/munge.seed"]
        self._start("munged", ["munged", "--foreground", "--force", *own])
        self._until("munge", lambda: (run / "munge.socket").exists())
        self._start("slurmctld", ["slurmctld", "-D", "-c"])
        hosts = f"mount --bind {self.folder}/hosts /etc/hosts && exec slurmd -D -N "
        for node in NODES:
            self._start(node, ["unshare", "--mount", "bash", "-ec", hosts + node])
        self._until("two idle nodes", lambda: "2" in self.ask("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D"))

    def _start(self, name: str, command: list[str]) -> None:
        path = {"PATH": f"{os.environ['PATH']}:/usr/sbin"}
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment | path
            )

    def _until(self, what: str, ask: Callable[[], bool], limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not ask():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (self.folder / "log").glob("*"))
                raise RuntimeError(f"{what} never came:\n{logs}")
            time.sleep(0.5)

    def ask(self, *command: str) -> str:
        """The output of a Slurm command; empty if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    def job(self, identity: str) -> dict[str, str]:
        """What Slurm says of a job, or of a task of an array: {"JobState": "RUNNING", "Restarts": "0", ...}."""
        words = self.ask("scontrol", "show", "job", "-o", identity).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask("scancel", "--user=root")
        deadline = time.monotonic() + 60
        while self.ask("squeue", "-h") and time.monotonic() < deadline:
            time.sleep(0.5)
        self._stop()

    def _stop(self) -> None:
        for name in (*NODES, "slurmctld", "munged"):
            if (daemon := self._daemons.get(name)) is None:
                continue
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
