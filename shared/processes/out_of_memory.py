"""How often the kernel ended a process for lack of memory: evidence of whose act a SIGKILL was."""

from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def out_of_memory_kills() -> int | None:
    """Since the machine started, of all its processes; None: this system does not count them."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
