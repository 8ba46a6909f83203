"""The MariaDB server of a worker: started with its first session, in a folder of its own, reached by a socket alone.

    mariadbd (on PATH, or as MARIADBD says) ─▶ system tables ─▶ serves users, each with the rights of one database

It ends with its worker, also if that is killed: the worker's guard ends all its processes. The folder of an ended worker is
removed by the next one. Needs the package `pymysql`; nothing else of Python's.
"""

import contextlib
import fcntl
import os
import pwd
import resource
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOOT_S = 90.0
DROP_S = 2  # whole seconds, for locks on a database that is dropped
MEMORY_BYTES = 3 << 30  # of addresses: a statement that asks for more gets an error
PREFIX = "tandem-mariadb-"
_LOCK = "lock"
_SQL = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
_POLL_S = 0.05
_starting = threading.Lock()
_servers: list["MariadbServer"] = []


def server() -> "MariadbServer":
    """The one of this process; another one if it has ended. Raises RuntimeError."""
    with _starting:
        if not _servers or _servers[0].has_ended():
            _servers[:] = [MariadbServer.started()]
        return _servers[0]


class MariadbServer:
    """`folder`: its files. Statements of its own go over one connection, one at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, password: str, lock: int) -> None:
        self.folder = folder
        self._process, self._password, self._lock = process, password, lock
        self._asking = threading.Lock()
        self._root: Any = None

    @classmethod
    def started(cls) -> "MariadbServer":
        program = os.environ.get("MARIADBD") or shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        if not os.access(program, os.X_OK):
            raise RuntimeError("mariadbd is not there; install mariadb-server, or name the program by MARIADBD")
        _remove_left_over()
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        password = secrets.token_hex(16)
        share = Path(program).resolve().parents[1] / "share" / "mysql"
        process = _started(program, share, folder, password)
        running = cls(process, folder, password, lock)
        running._wait()
        return running

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """As its root. Raises RuntimeError."""
        import pymysql

        with self._asking:
            try:
                self._root = self._root or self.connect("root", self._password, None)
                with self._root.cursor() as cursor:
                    cursor.execute(statement)
                    return list(cursor.fetchall())
            except pymysql.Error as exc:
                with contextlib.suppress(pymysql.Error, AttributeError):
                    self._root.close()
                self._root = None
                raise RuntimeError(f"the MariaDB server failed: {exc}") from exc

    def connect(self, user: str, password: str, database: str | None, read_s: float = BOOT_S) -> Any:
        import pymysql

        return pymysql.connect(
            unix_socket=str(self.folder / "s"),
            user=user,
            password=password,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=int(BOOT_S),
            read_timeout=read_s,
            write_timeout=read_s,
        )

    def drop(self, database: str) -> None:
        """A transaction of XA that was prepared outlives its connection, and holds the tables."""
        waits = f"lock_wait_timeout = {DROP_S}, innodb_lock_wait_timeout = {DROP_S}"
        with contextlib.suppress(RuntimeError):
            self.execute(f"SET STATEMENT {waits} FOR DROP DATABASE IF EXISTS `{database}`")
            return
        for *_, name in self.execute("XA RECOVER FORMAT = 'SQL'"):
            with contextlib.suppress(RuntimeError):  # another session's, which has not ended
                self.execute(f"XA ROLLBACK {name}")
        self.execute(f"DROP DATABASE IF EXISTS `{database}`")

    def size_of(self, database: str) -> int:
        """Bytes of its files."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder / "data" / database) as entries:
            return sum(entry.stat().st_blocks * 512 for entry in entries)
        return 0

    def _wait(self) -> None:
        end = time.monotonic() + BOOT_S
        while True:
            with contextlib.suppress(RuntimeError):
                self.execute("SELECT 1")
                return
            if self.has_ended() or time.monotonic() > end:
                log_end = (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-500:]
                self._process.kill()
                raise RuntimeError(f"mariadbd did not start within {BOOT_S:g} s: {log_end}")
            time.sleep(_POLL_S)  # the server is another process, and only its answer shows that it is up


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _started(program: str, share: Path, folder: Path, password: str) -> "subprocess.Popen[bytes]":
    """Its system tables first. Raises RuntimeError."""
    data, log = folder / "data", folder / "log"
    data.mkdir(mode=0o700)
    first = folder / "first.sql"
    text = (
        f"ALTER USER root@localhost IDENTIFIED BY '{password}';\n"
        "DELETE FROM mysql.global_priv WHERE User != 'mariadb.sys' AND NOT (User = 'root' AND Host = 'localhost');\n"
        "FLUSH PRIVILEGES;\n"
    )
    with open(first, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)
    user = _user_of(folder, data, first)
    options = [program, "--no-defaults", f"--datadir={data}", f"--lc-messages-dir={share / 'english'}", *user]
    script = "CREATE DATABASE mysql;\nUSE mysql;\n" + "".join((share / name).read_text("utf-8") for name in _SQL)
    with open(log, "xb", opener=_private) as output:
        made = subprocess.run(
            [*options, "--bootstrap", *_SETTINGS], input=script.encode(), stdout=output, stderr=output, timeout=BOOT_S
        )
        if made.returncode != 0:
            raise RuntimeError(f"mariadbd --bootstrap failed: {log.read_text('utf-8', 'replace')[-500:]}")
        socket = [f"--socket={folder / 's'}", f"--pid-file={folder / 'pid'}", f"--init-file={first}"]
        return subprocess.Popen(
            [*options, *socket, f"--tmpdir={data}", "--skip-networking", *_SETTINGS],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_bounded,
        )


_SETTINGS = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-temp-data-file-path=ibtmp1:12M:autoextend:max:512M",
    "--max-connections=4096",
    "--max-allowed-packet=1M",
    "--max-recursive-iterations=100000",
    "--tmp-disk-table-size=64M",
    "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=8M",
    "--performance-schema=OFF",
    "--local-infile=OFF",
    "--skip-log-bin",
    "--skip-symbolic-links",  # DATA DIRECTORY would put a table's files anywhere, and needs no right
    "--skip-partition",  # whose DATA DIRECTORY is taken nevertheless
    "--event-scheduler=DISABLED",
)


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))


def _user_of(*paths: Path) -> list[str]:
    """Options of mariadbd, which refuses to run as root: the system account `nobody` gets its files then."""
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam("nobody")
    for path in paths:
        os.chown(path, account.pw_uid, account.pw_gid)
    return ["--user=nobody"]


def _remove_left_over() -> None:
    """Folders of servers whose worker was killed: nothing holds their lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def after(seconds: float, act: Callable[[], None]) -> threading.Timer:
    """Started."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer
