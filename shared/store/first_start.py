"""Prepares a MongoDB server with a password for runs: a replica set of one, the administrator, the users of `shared.store.users`.

    no user yet    ─▶ over the connection from its own machine: initiate the replica set, create the administrator
    administrator  ─▶ with its password: create or update roles and users

Every step may be repeated, and continued after a kill.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from shared.errors import ConfigError, StoreUnavailable
from shared.store.users import ADMIN, Account, Client, create_admin, prepare_users, set_admin_password

log = logging.getLogger(__name__)

POLL_S = 0.2
ANSWER_S = 5.0
ALREADY_INITIALIZED, UNAUTHORIZED, REFUSED_LOGIN = 23, 13, 18
NOT_YET = frozenset({94, 10107, 11602, 13435, 13436})  # no replica set yet, or no primary yet


@dataclass(frozen=True)
class LocalServer:
    """A server on this machine. `ca_file`: it requires TLS, with a certificate of this authority."""

    port: int
    ca_file: Path | None = None

    def client(self, admin_password: str | None = None) -> Client:
        options: dict[str, Any] = {}
        if admin_password:
            options |= {"username": ADMIN, "password": admin_password, "authSource": "admin"}
        if self.ca_file is not None:
            options |= {"tls": True, "tlsCAFile": str(self.ca_file)}
        return MongoClient(
            "127.0.0.1",
            self.port,
            directConnection=True,
            serverSelectionTimeoutMS=round(1000 * ANSWER_S),
            connectTimeoutMS=round(1000 * ANSWER_S),
            socketTimeoutMS=60_000,
            appname="tandem",
            **options,
        )


# 7 parameters: a server, its place in the set, and its accounts
def prepare_server(
    server: LocalServer,
    replica_set: str,
    member: str,
    admin_password: str,
    passwords: Mapping[Account, str],
    timeout_s: float,
    next_admin_password: str | None = None,
) -> None:
    """Prepare `server`. `member`: HOST:PORT by which the clients of the set reach it.

    `next_admin_password`: the administrator's from now on; an earlier call may have set it already.
    Raises StoreUnavailable, and ConfigError if its administrator has another password.
    """
    deadline = time.monotonic() + timeout_s
    with server.client() as local:
        _until(deadline, f"MongoDB on port {server.port} to answer", lambda: bool(local.admin.command("hello")))
        if next_admin_password is not None and _may_log_in(server, next_admin_password):
            admin_password = next_admin_password
        elif not _may_log_in(server, admin_password):
            _begin(local, replica_set, member, admin_password, deadline)
            if not _may_log_in(server, admin_password):
                raise ConfigError(
                    f"MongoDB on port {server.port}: its user {ADMIN!r} has another password than the one in the folder; "
                    "expected the folder that was made together with this server's data"
                )
    with server.client(admin_password) as admin:
        _until(deadline, "a primary", lambda: bool(admin.admin.command("hello")["isWritablePrimary"]))
        prepare_users(admin, passwords)
        if next_admin_password is not None:
            set_admin_password(admin, next_admin_password)
            log.info("user %s has a new password", ADMIN)


def _begin(local: Client, replica_set: str, member: str, admin_password: str, deadline: float) -> None:
    """Over a connection from the same machine, which may do this as long as there is no user."""
    members = [{"_id": 0, "host": member}]
    with _refused_once_there_are_users(ALREADY_INITIALIZED):
        local.admin.command("replSetInitiate", {"_id": replica_set, "members": members})
        log.info("replica set %s of %s", replica_set, member)
    _until(deadline, "a primary", lambda: bool(local.admin.command("hello")["isWritablePrimary"]))
    with _refused_once_there_are_users():
        create_admin(local, admin_password)
        log.info("user %s created", ADMIN)


@contextmanager
def _refused_once_there_are_users(*codes: int) -> Iterator[None]:
    """Pass over a refusal for want of a login, or with one of `codes`: an earlier call has done it."""
    try:
        yield
    except OperationFailure as exc:
        if exc.code not in (UNAUTHORIZED, *codes):
            raise


def _may_log_in(server: LocalServer, admin_password: str) -> bool:
    """With a client of its own: one that was refused stays so."""
    try:
        with server.client(admin_password) as admin:
            admin.admin.command("ping")
    except OperationFailure as exc:
        if exc.code != REFUSED_LOGIN:
            raise
        return False
    return True


def _until(deadline: float, what: str, is_so: Callable[[], bool]) -> None:
    """Raises StoreUnavailable."""
    last_error = ""
    while True:
        try:
            if is_so():
                return
        except ConnectionFailure as exc:
            last_error = f" ({exc})"
        except PyMongoError as exc:
            if not isinstance(exc, OperationFailure) or exc.code not in NOT_YET:
                raise
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"waited for {what} until the time was over{last_error}")
        time.sleep(POLL_S)
