"""The system calls that a sandboxed process cannot make: a BPF program for seccomp (see seccomp(2)).

A list of what is refused, not of what is allowed: tools are any programs. Everything on it is either needless for tools, or a
way around another protection (io_uring opens sockets without `socket`; System V memory and memfds are counted to no process).
Standard library only: it runs in the warden, for x86-64 and AArch64.
"""

import errno
import os
import struct
from functools import cache

# {name: (number on x86-64, number on AArch64)}; None: the call does not exist there.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # file systems and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "acct": (163, 89),
    "uselib": (134, None),
    "sysfs": (139, None),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    # the kernel
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vserver": (236, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # memory and messages that no process's limits count
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
CLONE, CLONE3, IOCTL, SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the terminal of another process
STARTS = {"fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281)}
_CLONE_THREAD = 0x00010000
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_X32 = 0x40000000  # numbers of x86-64's second ABI begin here
FAMILIES = (1, 2, 10, 16)  # of sockets, where there are any: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24  # offsets in struct seccomp_data
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


@cache
def program(families: tuple[int, ...], processes: bool = True) -> bytes:
    """The filter, an array of `struct sock_filter`. Sockets have one of `families`, or are from `socketpair`.

    Without `processes`, threads alone can be started: no process, and no program.

    Raises ValueError on other architectures.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise ValueError(f"seccomp: no list of system calls for {machine}; expected one of {', '.join(_ARCHITECTURES)}")
    column, architecture = _ARCHITECTURES[machine]
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if column == 0:
        code += [_step(_JUMP_GREATER, _X32, 0, 1), _refusal(errno.ENOSYS)]
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            code += [_step(_JUMP_EQUAL, number, 0, 1), _refusal(errno.EPERM)]
    if not processes:
        for numbers in STARTS.values():
            number = numbers[column]
            if number is not None:
                code += [_step(_JUMP_EQUAL, number, 0, 1), _refusal(errno.EPERM)]
        code += _on_argument(CLONE[column], _ARGUMENT_0, _step(_JUMP_ANY_BIT, _CLONE_THREAD, 1, 0))
    # The C library tries clone3 first, whose flags are in memory that a filter cannot read, and then clone.
    code += [_step(_JUMP_EQUAL, CLONE3[column], 0, 1), _refusal(errno.ENOSYS)]
    code += _on_argument(CLONE[column], _ARGUMENT_0, _step(_JUMP_ANY_BIT, _NAMESPACES, 0, 1))
    for request in _TERMINAL_INPUT:
        code += _on_argument(IOCTL[column], _ARGUMENT_1, _step(_JUMP_EQUAL, request, 0, 1))
    code += [_step(_JUMP_EQUAL, SOCKET[column], 0, len(families) + 2), _step(_LOAD, _ARGUMENT_0)]
    code += [_step(_JUMP_EQUAL, family, len(families) - at, 0) for at, family in enumerate(families)]
    return b"".join([*code, _refusal(errno.EPERM), _step(_RETURN, _ALLOW)])


def _on_argument(call: int, argument: int, test: bytes) -> list[bytes]:
    """Refuse `call` if `test` falls through to the next step; it skips one step otherwise."""
    return [
        _step(_JUMP_EQUAL, call, 0, 4),
        _step(_LOAD, argument),
        test,
        _refusal(errno.EPERM),
        _step(_LOAD, _NUMBER),
    ]


def _refusal(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
