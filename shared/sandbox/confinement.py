"""What a process gives up before it becomes a sandboxed command: its user, its privileges, most system calls and files.

Standard library only, and few modules: it runs in the warden's child, also in one forked from a server that has the tools loaded.
"""

import ctypes
import os
import resource
import struct
from typing import NamedTuple

from shared.processes.guard import prctl
from shared.sandbox import landlock, seccomp
from shared.sandbox.mounts import show

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _SECCOMP_FILTER = 38, 22, 24, 2
_MB = 1024 * 1024
_LAST_CAPABILITY = 63
_MOST_DESCRIPTORS = 1 << 20
# Read-only parts of a system that programs need. /etc: no file with secrets, keys or users.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = tuple(
    f"/etc/{name}"
    for name in (
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "alternatives",
        "localtime",
        "timezone",
        "mime.types",
        "magic",
        "ssl/certs",
        "ssl/openssl.cnf",
        "ca-certificates",
        "pki/tls/certs",
        "nsswitch.conf",
        "protocols",
        "services",
        "fonts",
    )
)
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf")


class Confinement(NamedTuple):
    """Plain values, so that it crosses to the warden as JSON. Limits as in `Limits`."""

    folder: str
    readable: list[str]
    network: bool
    user: int | None  # None: the gateway is not root, and cannot change it
    cpu_s: int
    memory_mb: int
    processes: int
    open_files: int
    file_mb: int
    cgroups: list[str]  # folders of cgroups to join
    whole: bool  # by this process itself; False: `bubblewrap` does the rest


def confine(what: Confinement, rules_fd: int | None = None, alone: bool = False) -> None:
    """Of this process, from here on: no descriptor but the first three and `rules_fd`. Raises OSError: then nothing may be run.

    `alone`: it starts no process and no program, and has no folder: it writes no file. `rules_fd` is its Landlock rules then. Its
    server has done what is alike for all: mounts, and the bounding set of capabilities.
    """
    os.umask(0o022)
    if rules_fd is not None:
        os.closerange(3, rules_fd)
    os.closerange(3 if rules_fd is None else rules_fd + 1, _MOST_DESCRIPTORS)
    for cgroup in what.cgroups:
        with open(f"{cgroup}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    if what.user is not None and not alone:
        show([*what.readable], [what.folder], what.user)
    _limit(what)
    if what.user is not None:
        if not alone:
            drop_capabilities()
        os.setgroups([])
        os.setresgid(what.user, what.user, what.user)
        os.setresuid(what.user, what.user, what.user)
    os.umask(0o077)
    if not alone:
        os.chdir(what.folder)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if alone:
        _forbid_files(what, rules_fd)
    elif what.whole:
        landlock.restrict([*SYSTEM, *readable_files(what)], [what.folder])
    if what.whole:
        _filter(seccomp.program(seccomp.FAMILIES if what.network else (), processes=not alone))


def _forbid_files(what: Confinement, rules: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if rules is not None:
        landlock.enforce(rules)
        os.close(rules)


def readable_files(what: Confinement) -> list[str]:
    return [*SYSTEM_FILES, *(NETWORK_FILES if what.network else ()), *what.readable]


def _limit(what: Confinement) -> None:
    limits = {
        resource.RLIMIT_CPU: what.cpu_s,
        # Not RLIMIT_AS: Node, Java and torch reserve addresses that they never use.
        resource.RLIMIT_DATA: what.memory_mb * _MB,
        resource.RLIMIT_NOFILE: what.open_files,
        resource.RLIMIT_FSIZE: what.file_mb * _MB,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 64 * 1024,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    if what.user is not None:  # it counts all processes of the user: of a shared user, it would be the others' too
        limits[resource.RLIMIT_NPROC] = what.processes
    for which, most in limits.items():
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        later = 1 if which == resource.RLIMIT_CPU else 0  # SIGXCPU, and SIGKILL a second later
        resource.setrlimit(which, (most, most + later if hard == resource.RLIM_INFINITY else min(most + later, hard)))


def drop_capabilities() -> None:
    """From the bounding set. A program with file capabilities could get them back otherwise, where no_new_privs is not kept."""
    libc = ctypes.CDLL(None)
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _filter(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, fprog, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
