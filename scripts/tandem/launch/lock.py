"""One launcher per run and machine: a locked file that contains the holder's pid.

The kernel releases the lock with its last holder: the launcher or, if it was killed, the reaper that is still stopping
its children.
"""

import fcntl
import os
import time
from pathlib import Path

from shared.errors import ConfigError

CLEANUP_WAIT_S = 90.0


class RunLock:
    """Use as a context manager. Raises ConfigError if another launcher runs this run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def __enter__(self) -> "RunLock":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + CLEANUP_WAIT_S
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pid = os.pread(self.fd, 20, 0).decode().strip()
                if (pid.isdigit() and Path(f"/proc/{pid}").exists()) or time.monotonic() > deadline:
                    os.close(self.fd)
                    raise ConfigError(
                        f"another launcher with pid {pid or 'unknown'} already runs this run ({self.path}); "
                        "stop it with Ctrl-C or SIGTERM, or choose another RUN_NAME"
                    ) from None
                time.sleep(0.2)  # flock has no time-out; a killed launcher's reaper may be stopping its children
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self.fd, 0)
        os.close(self.fd)
