"""The memory that this machine's processes may use together: what is installed, or the least limit of the cgroups that this
process is in (a container's, a service's)."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def machine_memory_bytes() -> int:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([installed, *cgroup_limits()])


def cgroup_limits() -> Iterator[int]:
    """The limits of this process's cgroup and of those above it, which hold too."""
    if not OWN_CGROUPS.is_file():
        return
    for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.strip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(root):
                break
            limit = _limit(place / name)
            if limit is not None:
                yield limit


def _limit(file: Path) -> int | None:
    """None: there is no limit ("max"), or no such file, as in the root of version 2."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
