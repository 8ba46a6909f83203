"""The store: all MongoDB queries of both services, as named verbs.

    async with Store.open(connection_string, run="demo") as store:
        task = await store.tasks.get("main:train:0:t1")

Only this package queries MongoDB. Writes are acknowledged by a journaled majority; reads go to the primary with read concern
majority. A connection string cannot change that (docs/run/database.md).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.read_concern import ReadConcern

from shared.errors import ConfigError
from shared.names import check_run_name
from shared.redaction import shown
from shared.store.admission import AdmissionVerbs
from shared.store.connecting import connect, first_contact
from shared.store.environments import EnvironmentVerbs
from shared.store.evaluation import EvaluationVerbs
from shared.store.events import EventVerbs
from shared.store.feedback import FeedbackVerbs
from shared.store.group_scores import GroupScoreVerbs
from shared.store.images import ImageVerbs
from shared.store.leases import LeaseVerbs
from shared.store.malformed import MalformedVerbs
from shared.store.notes import NoteVerbs
from shared.store.outlook import OutlookVerbs
from shared.store.policies import ServiceVerbs, VersionVerbs
from shared.store.primary import until_primary
from shared.store.questions import QuestionVerbs
from shared.store.record_data import RecordDataVerbs
from shared.store.records import RecordVerbs
from shared.store.resettling import ResettlingVerbs
from shared.store.routed_experts import RoutedExpertVerbs
from shared.store.rules import RuleVerbs
from shared.store.runs import RunVerbs, WorkerVerbs
from shared.store.sessions import SessionVerbs
from shared.store.settings import SettingsVerbs
from shared.store.settlements import SettlementVerbs
from shared.store.signals import Signals
from shared.store.steps import StepVerbs
from shared.store.stored import StoredDocuments
from shared.store.stored_steps import StoredSteps
from shared.store.tasks import TaskVerbs
from shared.store.tool_schemas import ToolSchemaVerbs
from shared.store.trainer_logprobs import TrainerLogprobVerbs
from shared.store.unforeseen import UnforeseenVerbs


class Store:
    """Verbs by collection. Its client is bound to the running event loop."""

    def __init__(self, client: AsyncMongoClient[dict[str, Any]], run: str) -> None:
        # Journaled majority: an acknowledged write survives kill -9 of the server (w=1 lost some in our trials) and of the
        # primary of a replica set. Primary reads: a lagging secondary returns old slots and marks.
        database: AsyncDatabase[dict[str, Any]] = client.get_database(
            run,
            codec_options=CodecOptions(document_class=dict[str, Any]),
            read_preference=ReadPreference.PRIMARY,
            write_concern=WriteConcern(w="majority", j=True, wtimeout=30_000),
            read_concern=ReadConcern("majority"),
        )
        self.client = client
        self.run = run
        self._contact: Callable[[], AbstractContextManager[None]] = nullcontext
        self.database = database
        self.signals = Signals(database)
        self.tasks = TaskVerbs(database, self.signals)
        self.admission = AdmissionVerbs(database)
        self.evaluation = EvaluationVerbs(database, self.tasks, self.signals)
        self.feedback = FeedbackVerbs(database, self.signals)
        self.group_scores = GroupScoreVerbs(database)
        self.records = RecordVerbs(database)
        self.tool_schemas = ToolSchemaVerbs(database)
        self.images = ImageVerbs(database)
        self.routed_experts = RoutedExpertVerbs(database)
        self.malformed = MalformedVerbs(database)
        self.settlements = SettlementVerbs(database, self.malformed)
        self.data = RecordDataVerbs(database, self.malformed, self.signals)
        self.steps = StepVerbs(database)
        self.trainer_logprobs = TrainerLogprobVerbs(database)
        self.sessions = SessionVerbs(database)
        self.notes = NoteVerbs(database)
        self.runs = RunVerbs(database, self.signals)
        self.settings = SettingsVerbs(database)
        self.rules = RuleVerbs(database, self.signals)
        self.versions = VersionVerbs(database, self.signals)
        self.services = ServiceVerbs(database, self.signals)
        self.environments = EnvironmentVerbs(database)
        self.workers = WorkerVerbs(database)
        self.leases = LeaseVerbs(database)
        self.questions = QuestionVerbs(database)
        self.stored = StoredDocuments(database)
        self.stored_steps = StoredSteps(database)
        self.events = EventVerbs(database)
        self.outlook = OutlookVerbs(database)
        self.resettling = ResettlingVerbs(database)
        self.unforeseen = UnforeseenVerbs(database)

    async def ensure_indexes(self) -> None:
        for verbs in (
            self.tasks,
            self.feedback,
            self.records,
            self.sessions,
            self.data,
            self.admission,
            self.steps,
            self.trainer_logprobs,
            self.notes,
            self.versions,
            self.settings,
            self.rules,
            self.unforeseen,
        ):
            await verbs.ensure_indexes()

    async def begin(self) -> None:
        """Create the run's document and indexes if missing. Raises StoreUnavailable, ConfigError, DataError."""
        with self._contact():
            await self.runs.ensure()
            await self.ensure_indexes()

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
        create: bool = True,
    ) -> AsyncIterator["Store"]:
        """Connect; create the run's document and indexes if missing. A replica set that elects its primary is waited for. Raises
        StoreUnavailable, ConfigError.

        `must_exist`: a missing run raises ConfigError and is not created. `read_only`: likewise, and indexes are not created.
        `create` False: a missing run is created by `begin()` alone, so that what fails before it leaves no run.
        """
        check_run_name(run)
        client = connect(connection_string, timeout_s)
        try:
            store = cls(client, run)
            store._contact = partial(first_contact, connection_string, run, timeout_s)
            with store._contact():
                await until_primary(client, connection_string)
                if (must_exist or read_only) and await store.runs.get() is None:
                    names = ", ".join(await store.questions.run_names()) or "none"
                    raise ConfigError(f"no run {run!r} at {shown(connection_string)}; runs there: {names}")
                if read_only or (not create and await store.runs.get() is not None):
                    await store.runs.read()  # of another schema version: refused
                elif create:
                    await store.begin()
            try:
                yield store
            finally:
                await store.signals.close()
        finally:
            await client.close()
