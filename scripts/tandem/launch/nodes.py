"""This machine's place among several: settings, values derived from Slurm's or torchrun's variables, and its own address.

flags, NUM_MACHINES, MACHINE_RANK, the YAML file     else     torchrun: GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
                                                     else     Slurm: SLURM_NNODES, SLURM_NODEID, SLURM_STEP_NODELIST, SLURM_JOB_ID
"""

import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field, field_validator

from sampler.engine.keeper.config import LOOPBACK
from shared.configuration.sections import Section
from shared.errors import ConfigError

FIRST_PORT, JOBS = 20_000, 1_000  # rendezvous ports of Slurm jobs: below the kernel's ephemeral ones
PORTS_A_JOB = 10  # one for each policy
GET_ADDRESS = 0x8915  # SIOCGIFADDR

# What torchrun sets for the process that it starts: it belongs to the launcher, not to the launcher's children.
OF_TORCHRUN = {
    *("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
}


class NodeSettings(Section):
    """The settings of a launch on one of several machines."""

    num_machines: int = Field(1, gt=0, description="Machines that train together.")
    machine_rank: int = Field(0, ge=0, description="This machine's number, from 0.")
    master_addr: str | None = Field(None, description="Address of machine 0, for the trainers' rendezvous.")
    master_port: int | None = Field(
        None, gt=0, lt=65536, description="Port on machine 0, for the trainers' rendezvous."
    )
    join: bool = Field(
        False,
        description="Start only samplers and an engine, for a run whose trainer runs on other machines. Such a machine may start "
        "and stop at any time.",
    )
    node_addr: str | None = Field(
        None,
        description="Address of this machine, by which samplers elsewhere reach its engine. None: 127.0.0.1 for a run on one "
        "machine; else the address of the interface towards the database and machine 0.",
    )
    node_name: str | None = Field(
        None,
        pattern=r"^[\w.-]{1,64}$",
        description="Name of a machine that joins, in its output and its logs. None: the host's name, with Slurm's array task.",
    )

    @field_validator("node_addr")
    @classmethod
    def node_addr_is_one_machine(cls, value: str | None) -> str | None:
        if value is not None and (value in ("0.0.0.0", "::") or not re.fullmatch(r"[\w.-]+", value)):
            raise ValueError(f"{value!r} is not the address of one machine; expected a host's name or IPv4 address")
        return value

    @property
    def is_main(self) -> bool:
        """Whether this machine imports the tasks, evaluates and summarizes."""
        return self.machine_rank == 0 and not self.join

    @property
    def is_alone(self) -> bool:
        """Whether no other machine writes to the same folders."""
        return self.num_machines == 1 and not self.join

    @property
    def is_spread(self) -> bool:
        """Whether samplers of other machines may use this one's engine."""
        return self.num_machines > 1 or self.join or self.node_addr is not None

    @property
    def node(self) -> str:
        """This machine in names of files and processes: its rank, or the name of one that joins."""
        return (self.node_name or default_name(os.environ)) if self.join else str(self.machine_rank)


@dataclass(frozen=True, slots=True)
class Derived:
    """Settings {name: value} that were not given, and where they come from."""

    source: str = ""
    values: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        return f"from {self.source}: " + " ".join(f"{name.upper()}={value}" for name, value in self.values.items())


def derived(environ: Mapping[str, str]) -> Derived:
    """The place that torchrun's or Slurm's variables name; empty on a single machine. Raises ConfigError."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return _of_torchrun(environ)
    if int(environ.get("SLURM_NNODES", "1")) > 1 and "SLURM_NODEID" in environ:
        return _of_slurm(environ)
    return Derived()


def _of_torchrun(environ: Mapping[str, str]) -> Derived:
    if environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise ConfigError(
            f"torchrun started {environ['LOCAL_WORLD_SIZE']} launchers on this machine; expected one: "
            "--nproc-per-node 1 (NUM_PROCESSES says how many trainer processes each of them starts)"
        )
    if environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return Derived()
    # torchrun's own store listens at MASTER_PORT while it runs.
    port = int(environ["MASTER_PORT"]) + (environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    values = {"num_machines": environ["GROUP_WORLD_SIZE"], "machine_rank": environ["GROUP_RANK"]}
    return Derived("torchrun", values | {"master_addr": environ["MASTER_ADDR"], "master_port": str(port)})


def is_of_torchrun(name: str) -> bool:
    """Whether torchrun set this variable for the launcher alone."""
    return name in OF_TORCHRUN or name.startswith("TORCHELASTIC_")


def _of_slurm(environ: Mapping[str, str]) -> Derived:
    if int(environ.get("SLURM_LOCALID", "0")) > 0 or "SLURM_STEP_ID" not in environ:
        raise ConfigError(
            f"this is not the one launcher of its node (SLURM_NNODES={environ['SLURM_NNODES']}); expected "
            "`srun --ntasks-per-node 1 scripts/minirl_example.sh RUN` (NUM_PROCESSES says how many trainer processes it starts)"
        )
    port = FIRST_PORT + PORTS_A_JOB * (int(environ.get("SLURM_JOB_ID", "0")) % JOBS)
    values = {"num_machines": environ["SLURM_NNODES"], "machine_rank": environ["SLURM_NODEID"]}
    nodes = (
        environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]
    )  # a step may have some of the job's nodes
    first = first_host(nodes)
    return Derived("Slurm", values | {"master_addr": first, "master_port": str(port)})


def first_host(hosts: str) -> str:
    """The first host of a Slurm host list: `gpu[03-05,9],cpu1` is `gpu03`."""
    first = re.split(r",(?![^\[]*\])", hosts)[0]
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first)


def default_name(environ: Mapping[str, str]) -> str:
    """The host's name; of a task of a Slurm array with its number, since two of them may run on one host."""
    tasks = [environ[name] for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if name in environ]
    return "-".join([re.sub(r"[^\w.-]", "-", socket.gethostname()), *tasks])[:64]


def own_address(settings: NodeSettings, database: str | None) -> str:
    """The address by which other machines reach this one: given, or that of the interface towards database and machine 0."""
    if settings.node_addr or not settings.is_spread:
        return settings.node_addr or LOOPBACK
    towards = [*_hosts(database), *([settings.master_addr] if settings.master_addr else [])]
    addresses = [address for host in towards if (address := _source_towards(host))]
    return next((address for address in addresses if not address.startswith("127.")), LOOPBACK)


def _hosts(database: str | None) -> list[str]:
    """The hosts of a connection string, without asking any of them; of `mongodb+srv` none."""
    scheme, _, rest = (database or "").partition("://")
    places = re.split(r"[/?]", rest.rpartition("@")[2], maxsplit=1)[0].split(",")
    return [place.partition(":")[0] for place in places if place] if scheme == "mongodb" else []


def _source_towards(host: str) -> str | None:
    """The address from which this machine would send to `host`; sends nothing."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return None


def interface_of(address: str) -> str | None:
    """The network interface with this address; None if no interface has it."""
    with contextlib.suppress(OSError):
        resolved = socket.gethostbyname(address)
        if resolved.startswith("127."):
            return "lo"
        for _, name in socket.if_nameindex():
            if _address_of(name) == resolved:
                return name
    return None


def _address_of(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)[20:24])
    return None


def place_lines(settings: NodeSettings, settled: Derived, address: str) -> list[str]:
    """What to say of this machine's place; nothing of the only one."""
    lines = [settled.text()] if settled.values else []
    if settings.join:
        lines.append(f"{settings.node} joins the run at {address}: no trainer here")
    elif settings.num_machines > 1:
        where = f"{address} (interface {interface_of(address) or 'unknown'})"
        meeting = f"{settings.master_addr}:{settings.master_port}"
        rank = f"rank {settings.machine_rank} of {settings.num_machines} machines"
        lines.append(f"{rank}, at {where}; the trainers meet at {meeting}")
    if settings.is_spread and address == LOOPBACK:
        lines.append(
            "this machine's engine is announced at 127.0.0.1, where no other machine reaches it: set NODE_ADDR"
        )
    return lines


def stop_line(settings: NodeSettings, received: signal.Signals) -> str:
    """What to say of a signal that ends this launch."""
    if received == signal.SIGINT:
        return "interrupted: stopping everything (Ctrl-C again: without waiting)"
    what = "this machine leaves the run" if settings.join else "stopping everything"
    return f"{received.name}: {what}"
