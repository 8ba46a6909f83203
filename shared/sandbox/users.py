"""Users of sessions: a number each, without a name, which no other session on the machine has at the same time.

A gateway that runs as root takes a block of numbers for itself by a locked file; the lock ends with the gateway.
"""

import fcntl
import os
from functools import cache
from pathlib import Path

from shared.errors import ConfigError

LOCKS = Path("/run/tandem-mcp-docker")
BLOCK = 4096  # sessions at once, of one gateway
_BLOCKS = 16
_FIRST = 1_879_048_192  # outside of what distributions, systemd and container engines give away
_FIRST_SMALL = 1_000  # in a user namespace with 65,536 users; a container has no others


class Users:
    """One block; the numbers that are free in it."""

    def __init__(self) -> None:
        self._lock, block = _locked_block()
        self._first = first_user() + block * (BLOCK if first_user() == _FIRST else BLOCK // 2)
        self._most = BLOCK if first_user() == _FIRST else BLOCK // 2
        self._used: set[int] = set()
        self._last = -1

    def take(self) -> int:
        for _ in range(self._most):
            self._last = (self._last + 1) % self._most  # not the one that was given back last
            if self._last not in self._used:
                self._used.add(self._last)
                return self._first + self._last
        raise ConfigError(
            f"sandbox: all {self._most} users of this gateway's sessions are taken; expected fewer sessions"
        )

    def has(self, user: int) -> bool:
        return self._first <= user < self._first + self._most

    def is_taken(self, user: int) -> bool:
        return user - self._first in self._used

    def give_back(self, user: int) -> None:
        self._used.discard(user - self._first)


def is_of_a_living_gateway(user: int) -> bool:
    """Of a block that a process has taken: this one's, of which sessions have it now, or another's."""
    if _USERS and _USERS[0].has(user):
        return _USERS[0].is_taken(user)
    size = BLOCK if first_user() == _FIRST else BLOCK // 2
    try:
        file = os.open(LOCKS / f"users-{(user - first_user()) // size}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def is_session_user(user: int) -> bool:
    return first_user() <= user < first_user() + _BLOCKS * BLOCK


@cache
def first_user() -> int:
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST and first + count >= _FIRST + _BLOCKS * BLOCK:
            return _FIRST
    return _FIRST_SMALL


def _locked_block() -> tuple[int, int]:
    LOCKS.mkdir(mode=0o700, parents=True, exist_ok=True)
    for block in range(_BLOCKS):
        file = os.open(LOCKS / f"users-{block}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return file, block
    raise ConfigError(f"sandbox: {_BLOCKS} gateways run as root on this machine; expected fewer")


_USERS: list[Users] = []


def users() -> Users:
    """This process's, taken when it is first asked for."""
    if not _USERS:
        _USERS.append(Users())
    return _USERS[0]
