"""Verbs on published weights and on their engines."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError

from shared.documents.offers import BroadcastOffer, Joined
from shared.documents.run import FileEntry, InferenceService, PolicyVersion, VersionKind
from shared.documents.states import OfferState, ServiceStatus
from shared.errors import DataError, LeaseLost
from shared.store.indexes import add_index, build_index
from shared.store.liveness import is_live
from shared.store.malformed import read_or_log, readable
from shared.store.pipelines import NOW, insert_once, literals
from shared.store.retry import survives_outages
from shared.store.signals import Signal, Signals

Document = dict[str, Any]


@survives_outages
class VersionVerbs:
    def __init__(self, database: AsyncDatabase[Document], signals: Signals) -> None:
        self._signals = signals
        self._versions: AsyncCollection[Document] = database["policy_versions"]

    async def ensure_indexes(self) -> None:
        await build_index(self._versions, [("policy", 1), ("version", -1)], name="newest", unique=True)
        # Begins with the step: with two indexes that begin with the policy, each question for the newest would try both.
        await add_index(self._versions, [("step", 1), ("policy", 1), ("version", 1)], name="of step")
        await add_index(self._versions, [("created_at", 1)], name="announced")
        await add_index(self._versions, [("pruned", 1), ("policy", 1), ("version", 1)], name="unpruned")

    # 11 parameters: one document is written at once; the optional ones say how the weights are put together
    async def announce(
        self,
        policy: str,
        step: int,
        path: str,
        files: Mapping[str, FileEntry],
        *,
        kind: VersionKind = "full",
        base: int | None = None,
        delta: FileEntry | None = None,
        adapter: Mapping[str, FileEntry] | None = None,
        offer: BroadcastOffer | None = None,
        source: str | None = None,
        trainer_generation: int = 0,
    ) -> PolicyVersion:
        """Announce weights whose files are complete; engines then load them. The version is the next free number.

        `trainer_generation`: of the announcing trainer; 0: no trainer. Raises LeaseLost if a later generation has a number
        (`fence`). The check and the insertion are safe together: a number taken in between makes the insertion fail.

        `delta` describes the file in `path` with the changes since version `base`, `adapter` the files of its adapter;
        without either, `kind` is "full".
        """
        assert (base is None) == (delta is None and adapter is None), "changes are changes since a version"
        assert kind == "full" or base is not None, "a version is complete, or changes something that is"
        while True:
            last = await self._versions.find_one({"policy": policy}, sort=[("version", -1)])
            if last is not None and last["path"] == path:
                return PolicyVersion.from_mongo(last)  # announced before; the acknowledgement was lost
            if last is not None and last.get("trainer_generation", 0) > trainer_generation:
                raise LeaseLost(
                    f"policy {policy}: trainer generation {last['trainer_generation']} has replaced generation "
                    f"{trainer_generation}; step {step} is not announced"
                )
            new = _version(
                policy,
                0 if last is None else int(last["version"]) + 1,
                step,
                path=path,
                files=dict(files),
                kind=kind,
                base=base,
                delta=delta,
                adapter=adapter and dict(adapter),
                offer=offer,
                source=source,
                trainer_generation=trainer_generation,
            )
            if await self._insert(new):
                return new

    async def fence(self, policy: str, trainer_generation: int, step: int) -> None:
        """At a trainer's start: prevent announcements of earlier generations.

        Reserves the next number with a version that has no weights and is withdrawn. The first generation has nothing to fence.
        """
        while trainer_generation > 1:
            last = await self._versions.find_one({"policy": policy}, sort=[("version", -1)])
            if last is not None and last.get("trainer_generation", 0) >= trainer_generation:
                return
            number = 0 if last is None else int(last["version"]) + 1
            values: Document = {"path": "", "files": {}, "withdrawn_to": step, "pruned": True}
            if await self._insert(_version(policy, number, step, trainer_generation=trainer_generation, **values)):
                return

    async def ensure_first(self, policy: str, path: str, files: Mapping[str, FileEntry]) -> PolicyVersion:
        """Announce version 0, the run's initial weights. Raises DataError if version 0 has other weights."""
        await self._insert(_version(policy, 0, 0, path=path, files=dict(files)))
        return await self.check_first(policy, path, files)

    async def check_first(self, policy: str, path: str, files: Mapping[str, FileEntry]) -> PolicyVersion:
        """Return version 0, which must exist. Raises DataError if it has other files."""
        first = await self.get(policy, 0)
        if {n: f["sha256"] for n, f in first.files.items()} != {n: f["sha256"] for n, f in files.items()}:
            raise DataError(
                f"policy {policy}: version 0 is {first.path}, whose checksums differ from those of {path}; "
                "start every service of a run from the same weights, or choose another run name"
            )
        return first

    async def _insert(self, new: PolicyVersion) -> bool:
        """False: the number is taken."""
        try:
            result = await self._versions.update_one({"_id": new.id}, insert_once(new.to_mongo()), upsert=True)
        except DuplicateKeyError:  # by a concurrent insertion
            return False
        self._signals.send(Signal.VERSIONS)
        return result.upserted_id is not None

    async def get(self, policy: str, version: int) -> PolicyVersion:
        stored = await self.find(policy, version)
        if stored is None:
            raise DataError(f"policy {policy}: no version {version} was ever published")
        return stored

    async def find(self, policy: str, version: int) -> PolicyVersion | None:
        """None: it was never published, or not yet."""
        document = await self._versions.find_one({"_id": f"{policy}:{version}"})
        return None if document is None else PolicyVersion.from_mongo(document)

    async def newest(self, policy: str) -> PolicyVersion | None:
        """The newest version of the surviving history, which engines should serve."""
        where: Document = {"policy": policy, "withdrawn_to": None}
        while (document := await self._versions.find_one(where, sort=[("version", -1)])) is not None:
            version = read_or_log(PolicyVersion, document)
            if version is not None:
                return version
            where["version"] = {"$lt": document["version"]}
        return None

    async def some(self, policy: str, versions: Iterable[int]) -> dict[int, PolicyVersion]:
        """{version: it} of those that were published."""
        cursor = self._versions.find({"policy": policy, "version": {"$in": sorted(versions)}})
        return {found.version: found for found in await readable(PolicyVersion, cursor)}

    async def unpruned(self, policy: str) -> list[PolicyVersion]:
        """Versions whose files are not deleted, in order: `keep_versions` bounds their number."""
        cursor = self._versions.find({"policy": policy, "pruned": False}).sort([("version", 1)])
        return await readable(PolicyVersion, cursor)

    async def all(self, policy: str) -> list[PolicyVersion]:
        """Also those whose files are deleted: one for every step of the run."""
        cursor = self._versions.find({"policy": policy}).sort([("version", 1)])
        return await readable(PolicyVersion, cursor)

    async def withdraw_after(self, policy: str, step: int, trainer_generation: int) -> int:
        """After a resume from `step`: withdraw later versions of earlier generations; returns the number of newly withdrawn ones.

        Lowers the fork step of versions withdrawn earlier, so that `PolicyVersion.staleness` stays correct.
        """
        theirs: Document = {"policy": policy, "trainer_generation": {"$not": {"$gte": trainer_generation}}}
        gone = await self._versions.update_many(
            {**theirs, "withdrawn_to": None, "step": {"$gt": step}}, {"$set": {"withdrawn_to": step}}
        )
        await self._versions.update_many({**theirs, "withdrawn_to": {"$gt": step}}, {"$set": {"withdrawn_to": step}})
        self._signals.send(Signal.VERSIONS)
        return gone.modified_count

    async def join_broadcast(self, policy: str, version: int, engine: Joined) -> bool:
        """Join the broadcast of a version. Returns False if the offer was closed before."""
        await self._versions.update_one(
            {
                "_id": f"{policy}:{version}",
                "offer.state": OfferState.OPEN,
                "offer.joined.service": {"$ne": engine.service},
            },
            {"$push": {"offer.joined": engine.model_dump()}},
        )
        offer = (await self.get(policy, version)).offer
        return offer is not None and offer.rank_of(engine.service) is not None

    async def close_broadcast(self, policy: str, version: int) -> BroadcastOffer:
        """Close the offer, which fixes the ranks."""
        await self._versions.update_one(
            {"_id": f"{policy}:{version}", "offer.state": OfferState.OPEN},
            [
                {
                    "$set": {
                        "offer.state": {
                            "$cond": [
                                {"$eq": ["$offer.joined", []]},
                                OfferState.UNUSED.value,
                                OfferState.SENDING.value,
                            ]
                        }
                    }
                }
            ],
        )
        offer = (await self.get(policy, version)).offer
        assert offer is not None, "only what was offered is closed"
        return offer

    async def end_broadcast(
        self, policy: str, version: int, state: Literal[OfferState.SENT, OfferState.FAILED]
    ) -> None:
        await self._versions.update_one(
            {"_id": f"{policy}:{version}", "offer.state": OfferState.SENDING}, {"$set": {"offer.state": state.value}}
        )

    async def fail_broadcasts(self, policy: str, trainer_generation: int) -> int:
        """At a trainer's start: fail the unsent offers of earlier generations. Returns their number."""
        unfinished = {"$in": [OfferState.OPEN, OfferState.SENDING]}
        theirs: Document = {"policy": policy, "trainer_generation": {"$not": {"$gte": trainer_generation}}}
        result = await self._versions.update_many(
            {**theirs, "offer.state": unfinished}, {"$set": {"offer.state": OfferState.FAILED.value}}
        )
        return result.modified_count

    async def set_source(self, policy: str, source: str) -> None:
        """Of all versions that have files: where the trainer's machine serves them now."""
        await self._versions.update_many(
            {"policy": policy, "pruned": False, "source": {"$ne": source}}, {"$set": {"source": source}}
        )

    async def mark_pruned(self, policy: str, versions: Sequence[int]) -> None:
        await self._versions.update_many(
            {"policy": policy, "version": {"$in": list(versions)}}, {"$set": {"pruned": True}}
        )


def _version(policy: str, version: int, step: int, **values: Any) -> PolicyVersion:
    return PolicyVersion(id=f"{policy}:{version}", policy=policy, version=version, step=step, **values)


@survives_outages
class ServiceVerbs:
    def __init__(self, database: AsyncDatabase[Document], signals: Signals) -> None:
        self._signals = signals
        self._services: AsyncCollection[Document] = database["inference_services"]
        self._reported: dict[str, tuple[ServiceStatus, int]] = {}  # by this process

    async def heartbeat(self, service: InferenceService) -> None:
        """Register a service, or update its heartbeat and state."""
        values = service.to_mongo()
        for name in ("_id", "heartbeat"):
            del values[name]
        await self._services.update_one(
            {"_id": service.id}, [{"$set": {**literals(values), "heartbeat": NOW}}], upsert=True
        )
        reported = (service.status, service.version)
        if self._reported.get(service.id) != reported:
            self._reported[service.id] = reported
            self._signals.send(Signal.SERVICES)

    async def set_status(self, url: str, status: ServiceStatus, error: str | None = None) -> None:
        await self._services.update_one({"_id": url}, {"$set": {"status": status.value, "error": error}})
        self._reported.pop(url, None)
        self._signals.send(Signal.SERVICES)

    async def remove(self, url: str) -> None:
        await self._services.delete_one({"_id": url})
        self._reported.pop(url, None)
        self._signals.send(Signal.SERVICES)

    async def live(self, policy: str) -> list[InferenceService]:
        """Services of a policy that are alive and not DOWN."""
        alive = {"policy": policy, "status": {"$ne": ServiceStatus.DOWN}, "$expr": is_live()}
        return await readable(InferenceService, self._services.find(alive))

    async def is_live(self) -> set[str]:
        """Ids of services with a live keeper, in any status."""
        return {service["_id"] async for service in self._services.find({"$expr": is_live()}, {"_id": 1})}

    async def needs_full_weights(self, policy: str) -> int | None:
        """The newest version that a live engine could not assemble; None: there is none."""
        asking = {"policy": policy, "needs_full_weights": {"$ne": None}, "$expr": is_live()}
        service = await self._services.find_one(asking, sort=[("needs_full_weights", -1)])
        return None if service is None else int(service["needs_full_weights"])

    async def all(self) -> list[InferenceService]:
        return await readable(InferenceService, self._services.find().sort([("_id", 1)]))
