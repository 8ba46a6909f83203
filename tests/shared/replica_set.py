"""A replica set of three real mongods on loopback, whose members are killed, stopped and made to lag.

    with ReplicaSet(folder) as servers:
        async with Store.open(servers.connection_string, "run") as store: ...
        servers.kill(servers.primary())

Elections take about two seconds instead of about twelve: `electionTimeoutMillis` is 1000.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from shared.processes.mongod import Mongod, free_port

NAME = "rs"
PATIENCE_S = 120.0
SETTINGS = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200, "catchUpTimeoutMillis": 2000}
TESTABLE = ("--setParameter", "enableTestCommands=1")  # fail points: a member that does not apply what it hears


class ReplicaSet:
    def __init__(self, folder: Path) -> None:
        options = ("--replSet", NAME, "--oplogSize", "16", *TESTABLE)
        self.members = [Mongod(folder / str(n), port=free_port(), options=options) for n in range(3)]

    @property
    def connection_string(self) -> str:
        return f"mongodb://{','.join(self._hosts())}/?replicaSet={NAME}"

    def _hosts(self) -> list[str]:
        return [f"127.0.0.1:{member.port}" for member in self.members]

    def __enter__(self) -> Self:
        for member in self.members:
            member.start()
        members = [{"_id": n, "host": host, "tags": {"member": str(n)}} for n, host in enumerate(self._hosts())]
        self.ask(0, {"replSetInitiate": {"_id": NAME, "members": members, "settings": SETTINGS}})
        self.primary()
        self.until(lambda: self.states().count("SECONDARY") == 2, "two secondaries")
        return self

    def __exit__(self, *_: object) -> None:
        for n in range(3):
            self.resume(n)
            self.kill(n)

    # ------------------------------------------------------------------ what it is

    def ask(self, n: int, command: dict[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        """Send a command to one member in any state."""
        options: dict[str, Any] = {"serverSelectionTimeoutMS": 2000, "socketTimeoutMS": round(timeout_s * 1000)}
        with pymongo.MongoClient[dict[str, Any]](self.members[n].connection_string, **options) as client:
            return client.admin.command(command)

    def states(self) -> list[str]:
        """As some member that answers sees them."""
        for n in range(3):
            try:
                return [member["stateStr"] for member in self.ask(n, {"replSetGetStatus": 1}, 2)["members"]]
            except PyMongoError:
                continue
        return []

    def primary(self) -> int:
        """The member that says of itself that it takes writes, once there is one."""
        found: list[int] = []

        def is_there() -> bool:
            for n in range(3):
                try:
                    if self.ask(n, {"hello": 1}, 2)["isWritablePrimary"]:
                        found.append(n)
                        return True
                except PyMongoError:
                    continue
            return False

        self.until(is_there, "a primary")
        return found[0]

    def secondaries(self) -> list[int]:
        primary = self.primary()
        return [n for n in range(3) if n != primary]

    def until(self, happens: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happens():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} in {PATIENCE_S:g} s; members are {self.states()}")
            time.sleep(0.05)

    # ------------------------------------------------------------------ what befalls it

    def kill(self, n: int) -> None:
        """-9."""
        process = self.members[n].process
        assert process is not None
        process.kill()
        process.wait(30)

    def restart(self, n: int) -> None:
        self.members[n].start()

    def stop(self, n: int) -> None:
        """SIGSTOP: as where a network is cut, its peers hear nothing of it."""
        self._signal(n, signal.SIGSTOP)

    def resume(self, n: int) -> None:
        self._signal(n, signal.SIGCONT)

    def _signal(self, n: int, what: signal.Signals) -> None:
        process = self.members[n].process
        if process is not None and process.poll() is None:
            process.send_signal(what)

    def lag(self, n: int, lagging: bool = True) -> None:
        """A member that hears what the primary writes and does not apply it."""
        self.ask(n, {"configureFailPoint": "rsSyncApplyStop", "mode": "alwaysOn" if lagging else "off"})

    def step_down(self) -> None:
        """The primary becomes a secondary; another one is elected. A primary that no other can replace yet refuses."""
        self.until(self._steps_down, "primary that can be replaced")

    def _steps_down(self) -> bool:
        try:
            self.ask(self.primary(), {"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5})
        except OperationFailure as exc:
            if "electable secondaries" not in str(exc):
                raise
            return False
        return True

    def whole(self) -> None:
        """Every member is there, and has what the primary has."""
        for n, member in enumerate(self.members):
            self.resume(n)
            if member.process is None or member.process.poll() is not None:
                self.restart(n)
        self.until(lambda: sorted(self.states()) == ["PRIMARY", "SECONDARY", "SECONDARY"], "whole set")
