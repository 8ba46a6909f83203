"""Escape attempts by system calls, namespaces and the network. Docker's own seccomp profile answers in containers."""

from tests.shared.sandbox.escape_programs import Escape, kernel_call

_NOT_OUT = "met EPERM|met EACCES"
_NO_WAY = "met ENETUNREACH|met ECONNREFUSED|met EHOSTUNREACH|met EADDRNOTAVAIL|met EAI|met -3|met -2"


def network(name: str, code: str, elsewhere: str = _NO_WAY) -> Escape:
    return Escape(name, code, _NOT_OUT, elsewhere, elsewhere)


KERNEL = (
    kernel_call("mount", "mount", "b'none', b'/tmp', b'tmpfs', 0, 0"),
    kernel_call("remount of the root", "mount", "b'none', b'/', 0, 32 | 4096, 0"),
    kernel_call("umount", "umount2", "b'/proc', 2"),
    kernel_call("chroot", "chroot", "b'.'"),
    kernel_call("pivot_root", "pivot_root", "b'.', b'.'"),
    kernel_call("new mount API", "fsopen", "b'tmpfs', 0"),
    kernel_call("a user namespace by unshare", "unshare", "0x10000000"),
    Escape(
        "a user namespace by clone",
        "attempt(call, CLONE, 0x10000000 | 17, 0, 0, 0, 0)",
        "met EPERM",
        "met EPERM",
        "met EPERM",
    ),
    Escape(
        "a namespace by clone3",
        "attempt(call, 435, 0, 0)",
        "met ENOSYS",
        "met ENOSYS",
        "met ENOSYS|met EPERM|met EINVAL",
    ),
    kernel_call("another's namespace", "setns", "0, 0"),
    kernel_call("files by handle", "open_by_handle_at", "-100, 0, 0"),
    kernel_call("bpf", "bpf", "0, 0, 0"),
    kernel_call("keyrings", "keyctl", "0, -3, 1"),
    kernel_call("perf_event_open", "perf_event_open", "0, 0, -1, -1, 0"),
    kernel_call("userfaultfd", "userfaultfd", "0"),
    kernel_call("io_uring", "io_uring_setup", "1, 0", "met EFAULT|met EPERM"),
    kernel_call("kernel modules", "init_module", "0, 0, b''"),
    kernel_call("kexec", "kexec_load", "0, 0, 0, 0"),
    kernel_call("personality: no randomized addresses", "personality", "0x0040000"),
    kernel_call("reboot", "reboot", "0, 0, 0, 0"),
    kernel_call("the kernel's log", "syslog", "3, 0, 0"),
    kernel_call("the clock", "clock_settime", "0, 0"),
    kernel_call("the host's name", "sethostname", "b'x', 1"),
    kernel_call("memory of another process, by call", "process_vm_readv", "OTHER, 0, 0, 0, 0, 0", "met EPERM|reached"),
    kernel_call("a descriptor of another process", "pidfd_getfd", "3, 0, 0", "met EPERM|met EBADF|met ENOSYS"),
    Escape(
        "typing into a terminal (TIOCSTI)",
        "attempt(__import__('fcntl').ioctl, 0, 0x5412, b'x')",
        "met EPERM",
        "met EPERM",
        "met ENOTTY|met EPERM",
    ),
    Escape(
        "32-bit system calls (x32)",
        "attempt(call, 0x40000000 + 39)",
        "met ENOSYS",
        "met ENOSYS",
        "met ENOSYS|met EPERM",
    ),
)

NETWORK = (
    network("TCP to the machine", "attempt(socket.create_connection, ('127.0.0.1', PORT), 5)"),
    network("TCP to the world", "attempt(socket.create_connection, ('198.51.100.1', 80), 5)"),
    network(
        "a port to listen on", "s = socket.socket\nattempt(lambda: s().bind(('0.0.0.0', 0)))", "reached None"
    ),  # its own loopback
    Escape("DNS", "attempt(socket.gethostbyname, 'example.org')", "met -2|met -3", "met -2|met -3", "met -2|met -3"),
    network("UDP", "attempt(lambda: socket.socket(2, 2).sendto(b'x', ('198.51.100.1', 53)))"),
    network(
        "IPv6", "attempt(lambda: socket.socket(10, 2).sendto(b'x', ('2001:db8::1', 53)))", _NO_WAY + "|met EAFNOSUPPORT"
    ),
    network("raw packets", "attempt(socket.socket, 17, 3)", "met EPERM"),
    network("ICMP", "attempt(socket.socket, 2, 3, 1)", "met EPERM"),
    network(
        "an abstract socket of the machine",
        "attempt(lambda: socket.socket(1).connect(chr(0) + ABSTRACT))",
        "met ECONNREFUSED",
    ),
    network(
        "a socket in the machine's folders",
        "attempt(lambda: socket.socket(1).connect(SOCKET))",
        "met ENOENT|met EACCES|met ECONNREFUSED",
    ),
    network(
        "network settings (netlink)", "attempt(lambda: socket.socket(16, 3, 0).bind((0, 0)))", "reached None"
    ),  # of its own namespace
    network("the hypervisor (vsock)", "attempt(socket.socket, 40, 1)", "met EPERM|met EAFNOSUPPORT|reached"),
    network("the kernel's ciphers (AF_ALG)", "attempt(socket.socket, 38, 5)", "met EPERM|met EAFNOSUPPORT|reached"),
)
