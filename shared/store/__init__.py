"""The store: every MongoDB query of both services, as named verbs.

    async with Store.open(connection_string, run="demo") as store:
        claim = await store.tasks.claim_slot(worker, policy="main", split="train", lease_s=60, seq_limit=48)

Only this package speaks MongoDB. Writes that matter are acknowledged by a majority and journaled.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from pymongo import AsyncMongoClient, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError, ConnectionFailure, ServerSelectionTimeoutError

from shared.errors import ConfigError, StoreUnavailable
from shared.store.evaluation import EvaluationVerbs
from shared.store.policies import ServiceVerbs, VersionVerbs
from shared.store.questions import QuestionVerbs
from shared.store.record_data import RecordDataVerbs
from shared.store.records import RecordVerbs
from shared.store.runs import RunVerbs, WorkerVerbs
from shared.store.tasks import TaskVerbs

FORBIDDEN_IN_NAMES = '/\\. "$*<>:|?'


class Store:
    """Verbs by collection, over one client that is bound to the running event loop."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]], run: str) -> None:
        # A journaled majority: an acknowledged write survives kill -9 of the server (w=1 lost some in our trials).
        database: AsyncDatabase[dict[str, Any]] = client.get_database(
            run, write_concern=WriteConcern(w="majority", j=True, wtimeout=30_000)
        )
        self.client = client
        self.run = run
        self.database = database
        self.tasks = TaskVerbs(database)
        self.evaluation = EvaluationVerbs(database, self.tasks)
        self.records = RecordVerbs(database)
        self.data = RecordDataVerbs(database)
        self.runs = RunVerbs(database)
        self.versions = VersionVerbs(database)
        self.services = ServiceVerbs(database)
        self.workers = WorkerVerbs(database)
        self.questions = QuestionVerbs(database)

    async def ensure_indexes(self) -> None:
        for verbs in (self.tasks, self.records, self.data, self.versions):
            await verbs.ensure_indexes()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        connection_string: str,
        run: str,
        *,
        timeout_s: float = 10.0,
        must_exist: bool = False,
        read_only: bool = False,
    ) -> AsyncIterator["Store"]:
        """Connect, make the run's document and indexes if they are missing. Raises StoreUnavailable, ConfigError.

        `must_exist`: a run that is not there is a ConfigError, and nothing is made. `read_only`: likewise, and no index either.
        """
        check_run_name(run)
        try:
            client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
                connection_string,
                serverSelectionTimeoutMS=round(timeout_s * 1000),
                connectTimeoutMS=round(timeout_s * 1000),
                socketTimeoutMS=60_000,
                retryWrites=False,  # verbs repeat themselves; the driver's own way fails on a standalone server that restarts
                appname="tandem",
            )
        except (ConfigurationError, ValueError) as exc:  # the string itself may hold a password: it is not shown
            raise ConfigError(f"db_connection_string: {exc}; expected mongodb://HOST:PORT/") from exc
        try:
            store = cls(client, run)
            try:
                await client.admin.command(
                    "ping"
                )  # no verb: those wait for the end of an outage, a first contact does not
            except (ServerSelectionTimeoutError, ConnectionFailure) as exc:
                raise StoreUnavailable(
                    f"MongoDB at {_without_password(connection_string)} did not answer within {timeout_s:g} s: {exc}. "
                    "Is it running? `tandem mongod` starts one on this machine."
                ) from exc
            if (must_exist or read_only) and await store.runs.get() is None:
                names = ", ".join(await store.questions.run_names()) or "none"
                raise ConfigError(f"no run {run!r} at {_without_password(connection_string)}; runs there: {names}")
            if read_only:
                await store.runs.read()
            else:
                await store.runs.ensure()
                await store.ensure_indexes()
            yield store
        finally:
            await client.close()


def check_run_name(run: str) -> None:
    """Run names are database names. Raises ConfigError."""
    if not run or len(run.encode()) > 60 or any(c in FORBIDDEN_IN_NAMES for c in run):
        raise ConfigError(
            f"run name {run!r}: expected 1 to 60 bytes without spaces and without any of {FORBIDDEN_IN_NAMES.strip()}"
        )
    if run in ("admin", "local", "config"):
        raise ConfigError(f"run name {run!r} is a database of MongoDB's own; choose another")


def _without_password(connection_string: str) -> str:
    parts = urlsplit(connection_string)
    return parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]).geturl()
