"""A session's private folder, its user, and what remains of sessions whose gateway was killed.

STATE         locked by the gateway that uses it, as long as it lives: systemd-tmpfiles leaves locked folders alone
STATE/.lock   likewise, for gateways of earlier versions, which look at this alone
STATE/NAME    a session's folder (0700; of a user of its own where the gateway is root)
"""

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

from shared.errors import ConfigError
from shared.processes.guarded import MARK
from shared.sandbox import cgroups, containers, landlock
from shared.sandbox.users import is_of_a_living_gateway, is_session_user, users

log = logging.getLogger(__name__)

LOCK_NAME = ".lock"
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # where any user may leave files
_POLL_S = 0.02
_KILL_S = 30.0
_REMOVED_WITHIN_S = 60.0
_locks: dict[Path, tuple[int, int]] = {}  # the folder, opened, and its file


class StateFolderTaken(ConfigError):
    """Another process uses it."""


@dataclass(frozen=True, slots=True)
class StaleState:
    """What was found and removed."""

    processes: int = 0
    folders: int = 0
    containers: int = 0
    cgroups: int = 0

    def __add__(self, other: "StaleState") -> "StaleState":
        return StaleState(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def new_folder(state_folder: Path) -> Path:
    """A private folder for a session. Raises ConfigError if the gateway's sessions have all users."""
    state_folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder = state_folder.resolve() / uuid.uuid4().hex
    folder.mkdir(mode=0o700)
    try:
        own(folder)
    except BaseException:  # an interrupt too: a folder without an owner is never removed
        folder.rmdir()
        raise
    return folder


def own(folder: Path) -> int | None:
    """The session's user: the folder's owner, which it becomes at the first call. None: not root, so there are no others."""
    if os.geteuid() != 0:
        return None
    owner = folder.stat().st_uid
    if is_session_user(owner):
        return owner
    user = users().take()
    os.chown(folder, user, user)
    folder.chmod(0o700)
    return user


async def discard(folder: Path) -> None:
    """Remove a session's folder and give its user back, after all its processes have been stopped."""
    if landlock.abi() > 0 and _discard_empty(folder):
        return
    await asyncio.to_thread(_discard, folder)


def _discard_empty(folder: Path) -> bool:
    """At once, without a thread: most light sessions write nothing."""
    try:
        owner = os.stat(folder).st_uid
        os.rmdir(folder)
    except OSError:
        return False
    if os.geteuid() == 0 and is_session_user(owner):
        users().give_back(owner)
    return True


def _discard(folder: Path) -> None:
    try:
        owner = folder.stat().st_uid
    except FileNotFoundError:
        return
    _remove_tree(folder)
    if os.geteuid() == 0 and is_session_user(owner):
        _remove_shared_files(owner)
        users().give_back(owner)


async def reap_left_over(state_folder: Path) -> StaleState:
    """End and remove what an earlier gateway left that used this folder. Call it once, before the first session.

    Raises ConfigError if another gateway that lives uses the folder.
    """
    state_folder = await asyncio.to_thread(_locked, state_folder)
    named = await containers.left_over(state_folder)
    await containers.remove(named)
    return await asyncio.to_thread(_reap, state_folder, len(named))


async def own_state_folder(base: Path) -> tuple[Path, StaleState]:
    """For one of several processes that share `base` (no link): the first of BASE/0, BASE/1, … that no living process uses, until
    `release_state_folder`. What killed processes left in any of them is removed.
    """
    mine, *others = _free_state_folders(base)
    stale = await reap_left_over(mine)
    for other in others:
        stale += await reap_left_over(other)
        release_state_folder(other)
    return mine, stale


def _free_state_folders(base: Path) -> list[Path]:
    """Those that no living process uses, at least one. They are locked."""
    free: list[Path] = []
    most = max((int(folder.name) for folder in base.iterdir() if folder.name.isdecimal()), default=-1)
    for number in itertools.count():
        folder = base / str(number)
        if free and number > most:
            break
        if folder not in _locks:
            with contextlib.suppress(StateFolderTaken):
                free.append(_locked(folder))
    return free


def release_state_folder(state_folder: Path) -> None:
    for opened in _locks.pop(state_folder.resolve()):
        os.close(opened)


def _locked(state_folder: Path) -> Path:
    state_folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    state_folder = state_folder.resolve()
    if state_folder in _locks:
        return state_folder
    held = (
        os.open(state_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
        os.open(state_folder / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600),
    )
    try:
        for opened in held:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        for opened in held:
            os.close(opened)
        raise StateFolderTaken(
            f"{state_folder}: another gateway uses this state folder; expected one of its own"
        ) from exc
    _locks[state_folder] = held
    return state_folder


def _reap(state_folder: Path, containers: int) -> StaleState:
    folders = [folder for folder in state_folder.iterdir() if folder.is_dir() and not folder.is_symlink()]
    owners = {folder: folder.lstat().st_uid for folder in folders} if os.geteuid() == 0 else {}
    ended = {
        folder: user for folder, user in owners.items() if is_session_user(user) and not is_of_a_living_gateway(user)
    }
    joined = cgroups.left_over(folder_key(state_folder))
    mark = f"{MARK}={folder_key(state_folder)}-".encode()
    processes = _end_processes(state_folder, set(ended.values()), joined, mark)
    for folder in folders:
        if folder in owners.keys() - ended.keys():
            _remove_tree(folder)  # its user is another session's by now
        else:
            _discard(folder)
    for cgroup in joined:
        with contextlib.suppress(OSError):
            cgroup.rmdir()
    return StaleState(processes, len(folders), containers, len(joined))


def end_left_of_start(folder: Path, mark: str, joined: Sequence[str], remove: Sequence[str]) -> None:
    """End what a start left whose warden was killed: by its mark, its cgroups and its session's user, and its container.

    The session's other starts, which have the same user, end with it.
    """
    if remove:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(remove, capture_output=True, check=False, timeout=_REMOVED_WITHIN_S)
    with contextlib.suppress(FileNotFoundError):
        owner = folder.stat().st_uid
        owners = {owner} if os.geteuid() == 0 and is_session_user(owner) else set()
        _end_processes(folder, owners, [Path(each) for each in joined], f"{MARK}={mark}".encode())
    cgroups.remove(joined)


def _end_processes(where: Path, owners: set[int], joined: list[Path], mark: bytes) -> int:
    """Kill them until none is left; how many there were. `mark`: the beginning of a variable in their environment."""
    killed: set[int] = set()
    end = time.monotonic() + _KILL_S
    while True:
        pids = {pid for cgroup in joined for pid in cgroups.members(cgroup)}
        pids |= {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_ours(pid, owners, mark)}
        if not pids:
            return len(killed)
        if time.monotonic() > end:
            log.warning("%s: processes of earlier sessions cannot be ended: %s", where, sorted(pids))
            return len(killed)
        killed |= pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)  # in a thread of its own; they are not our children, so there is no exit to wait for


def _is_ours(pid: int, owners: set[int], mark: bytes) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid in owners or _has_user(pid, owners):
            with open(f"/proc/{pid}/stat", "rb") as file:
                return not file.read().rpartition(b")")[2].lstrip().startswith(b"Z")
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(variable.startswith(mark) for variable in file.read().split(b"\0"))
    except OSError:  # it has ended, or is another user's
        return False


def _has_user(pid: int, owners: set[int]) -> bool:
    """A process that hides its memory belongs to root in /proc."""
    if not owners:
        return False
    with open(f"/proc/{pid}/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"Uid:"))
    return any(int(user) in owners for user in line.split()[1:])


def _remove_tree(folder: Path) -> None:
    """Also where a tool took rights away, or made paths longer than the system's limit."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], capture_output=True, check=False)
        removed = subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, text=True, check=False)
        if removed.returncode != 0:
            log.warning("the folder of an ended session cannot be removed: %s", removed.stderr.strip()[-500:])


def _remove_shared_files(user: int) -> None:
    """Of a session's user; with Landlock it could make none."""
    if landlock.abi() > 0:
        return
    for shared in _SHARED_FOLDERS:
        with contextlib.suppress(FileNotFoundError), os.scandir(shared) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == user:
                        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)


@cache
def folder_key(state_folder: Path) -> str:
    """A short name of a state folder, for what its sessions have outside of it."""
    return hashlib.sha256(str(state_folder.resolve()).encode()).hexdigest()[:12]
