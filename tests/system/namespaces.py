"""Machines on one kernel: each has a network, processes, a host name and folders of its own. Needs root and iproute2.

    the caller 10.77.N.254 ── veth ── bridge ── veth ── machine "a" 10.77.N.1
                                        └────── veth ── machine "b" 10.77.N.2

The bridge has a namespace of its own, out of reach of the firewall of this machine (that of Docker drops what is forwarded). A
machine is a network namespace, in which every command gets new namespaces for processes, mounts and the name of the host. Its
`output/` and `logs/` are folders of its own; what it shares with others is mounted by name. There is no route to anywhere else.
"""

import os
import secrets
import shlex
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]


class Machine:
    """One machine; `start` runs one command as its first process, whose death ends all the others."""

    def __init__(self, name: str, namespace: str, address: str, folder: Path, shared: dict[Path, Path]) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self._namespace = namespace
        self._shared = shared  # {where it is seen: what is mounted there}
        self._process: subprocess.Popen[bytes] | None = None
        for own in ("output", "logs", "tmp"):
            (folder / own).mkdir(parents=True, exist_ok=True)

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        own = {ROOT / "output": self.folder / "output", ROOT / "logs": self.folder / "logs"}
        script = [f"hostname {self.name}"]
        for place, source in (own | self._shared).items():
            script += _mounted(source, place)
        tmp = Path("/tmp")
        if ROOT.is_relative_to(tmp):  # the checkout is seen through the machine's own /tmp, which hides the other
            script += _mounted(ROOT, self.folder / "tmp" / ROOT.relative_to(tmp))
        script += _mounted(self.folder / "tmp", tmp)  # the last: it hides the sources
        script.append(f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}")
        inside = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "said.log").open("ab") as out:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, *inside, "bash", "-ec", "\n".join(script)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )

    def said(self) -> str:
        path = self.folder / "said.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def first_process(self) -> int | None:
        """The outer pid of the machine's first process; None while it is starting or after its end."""
        if self._process is None:
            return None
        pid = self._process.pid  # `ip netns exec` becomes unshare, whose only child is the first process
        children = Path(f"/proc/{pid}/task/{pid}/children")
        found = children.read_text().split() if children.exists() else []
        return int(found[0]) if found else None

    def processes(self, words: str) -> list[int]:
        """Outer pids of the machine's processes whose command line contains `words`."""
        first = self.first_process()
        return [pid for pid in _descendants(first) if words in _command(pid)] if first else []

    def kill(self) -> None:
        """As a lost machine: nothing in it can do anything any more."""
        if (first := self.first_process()) is not None:
            os.kill(first, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM to the launcher, as an operator's or a scheduler's; returns its exit status."""
        if (first := self.first_process()) is not None:
            os.kill(first, signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = 900.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)


def _mounted(source: Path, place: Path) -> list[str]:
    """Commands that show `source`, with what is mounted in it, at `place`."""
    there = shlex.quote(str(place))
    return [f"mkdir -p {there}", f"mount --rbind {shlex.quote(str(source))} {there}"]


class Network:
    """Use as a context manager: makes the bridge; its exit kills every machine and removes the namespaces with their links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tag = secrets.token_hex(3)
        self._subnet = f"10.77.{secrets.randbelow(200) + 20}"
        self._machines: list[Machine] = []
        self._namespaces: list[str] = []
        self.address = f"{self._subnet}.254"

    @property
    def _hub(self) -> str:
        return f"tandem-{self._tag}-hub"

    def __enter__(self) -> Self:
        _run(f"ip netns add {self._hub}")
        self._namespaces.append(self._hub)
        _run(f"ip -n {self._hub} link add bridge type bridge")
        _run(f"ip -n {self._hub} link set bridge up")
        own = f"tn{self._tag}"
        _run(f"ip link add {own} type veth peer name caller netns {self._hub}")
        self._plug("caller")
        _run(f"ip addr add {self.address}/24 dev {own}")
        _run(f"ip link set {own} up")
        return self

    def _plug(self, end: str) -> None:
        _run(f"ip -n {self._hub} link set {end} master bridge")
        _run(f"ip -n {self._hub} link set {end} up")

    def add(self, name: str, shared: dict[Path, Path] | None = None) -> Machine:
        """A new machine; `shared`: {folder as it sees it: the folder that is mounted there}."""
        number = len(self._machines) + 1
        namespace = f"tandem-{self._tag}-{name}"
        _run(f"ip netns add {namespace}")
        self._namespaces.append(namespace)
        _run(f"ip -n {self._hub} link add to-{name} type veth peer name eth0 netns {namespace}")
        self._plug(f"to-{name}")
        inside = f"ip -n {namespace}"
        address = f"{self._subnet}.{number}"
        for command in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run(f"{inside} {command}")
        machine = Machine(name, namespace, address, self.folder / name, shared or {})
        self._machines.append(machine)
        return machine

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in self._machines:
            if machine.runs:
                machine.kill()
        for namespace in self._namespaces:
            _run(f"ip netns del {namespace}", check=False)


def _run(command: str, *, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, timeout=30)


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [found for child in children for found in (child, *_descendants(child))]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
