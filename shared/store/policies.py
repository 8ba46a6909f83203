"""Verbs on published weights and on the engines that serve them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import DuplicateKeyError

from shared.errors import DataError
from shared.offers import BroadcastOffer, Joined
from shared.run_documents import InferenceService, PolicyVersion, VersionKind
from shared.states import OfferState, ServiceStatus
from shared.store.pipelines import NOW, literals
from shared.store.retry import survives_outages
from shared.weights import FileEntry

Document = dict[str, Any]


@survives_outages
class VersionVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._versions: AsyncCollection[Document] = database["policy_versions"]

    async def ensure_indexes(self) -> None:
        await self._versions.create_index([("policy", 1), ("version", -1)], name="newest", unique=True)

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
    ) -> PolicyVersion:
        """Announce weights whose files are complete; engines follow by themselves. The version is the next free number.

        `delta` describes the file in `path` with the changes since version `base`, `adapter` the files of an adapter of it;
        without either, `kind` is "full".
        """
        assert (base is None) == (delta is None and adapter is None), "changes are changes since a version"
        assert kind == "full" or base is not None, "a version is complete, or changes something that is"
        while True:
            last = await self._versions.find_one({"policy": policy}, sort=[("version", -1)])
            if last is not None and last["path"] == path:
                return PolicyVersion.from_mongo(last)  # announced before; the answer was lost on the way
            version = 0 if last is None else int(last["version"]) + 1
            try:
                return await self._insert(
                    policy,
                    version,
                    step,
                    path,
                    files,
                    kind=kind,
                    base=base,
                    delta=delta,
                    adapter=adapter and dict(adapter),
                    offer=offer,
                )
            except DuplicateKeyError:
                continue  # somebody else took that number: take the next

    async def ensure_first(self, policy: str, path: str, files: Mapping[str, FileEntry]) -> PolicyVersion:
        """Version 0, the weights that the run starts from. Raises DataError when other weights have that place."""
        try:
            return await self._insert(policy, 0, 0, path, files)
        except DuplicateKeyError:
            found = await self.get(policy, 0)
        if {n: f["sha256"] for n, f in found.files.items()} != {n: f["sha256"] for n, f in files.items()}:
            raise DataError(
                f"policy {policy}: version 0 is {found.path}, whose checksums differ from those of {path}; "
                "start every service of a run from the same weights, or choose another run name"
            )
        return found

    async def _insert(
        self, policy: str, version: int, step: int, path: str, files: Mapping[str, FileEntry], **how: Any
    ) -> PolicyVersion:
        new = PolicyVersion(
            id=f"{policy}:{version}",
            policy=policy,
            version=version,
            step=step,
            path=path,
            files=dict(files),
            **how,
        )
        await self._versions.insert_one(new.to_mongo())
        await self._versions.update_one({"_id": new.id}, [{"$set": {"created_at": NOW}}])
        return new

    async def get(self, policy: str, version: int) -> PolicyVersion:
        document = await self._versions.find_one({"_id": f"{policy}:{version}"})
        if document is None:
            raise DataError(f"policy {policy}: no version {version} was ever published")
        return PolicyVersion.from_mongo(document)

    async def newest(self, policy: str) -> PolicyVersion | None:
        """The newest version of the surviving history: what engines should serve."""
        document = await self._versions.find_one({"policy": policy, "withdrawn_to": None}, sort=[("version", -1)])
        return None if document is None else PolicyVersion.from_mongo(document)

    async def all(self, policy: str) -> list[PolicyVersion]:
        cursor = self._versions.find({"policy": policy}).sort([("version", 1)])
        return [PolicyVersion.from_mongo(d) async for d in cursor]

    async def withdraw_after(self, policy: str, step: int) -> int:
        """A resume from `step`: later versions leave the surviving history; returns how many did just now.

        The branch point of versions withdrawn earlier moves down with it, so that `PolicyVersion.lag` stays right.
        """
        gone = await self._versions.update_many(
            {"policy": policy, "withdrawn_to": None, "step": {"$gt": step}}, {"$set": {"withdrawn_to": step}}
        )
        await self._versions.update_many(
            {"policy": policy, "withdrawn_to": {"$gt": step}}, {"$set": {"withdrawn_to": step}}
        )
        return gone.modified_count

    async def join_broadcast(self, policy: str, version: int, engine: Joined) -> bool:
        """Whether the engine is among those that the version will be sent to; False once the offer is closed."""
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
        """Nobody joins any more: the ranks are settled."""
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

    async def fail_broadcasts(self, policy: str) -> int:
        """A trainer starts: what an earlier one offered and did not send is void. Returns how many that were."""
        unfinished = {"$in": [OfferState.OPEN, OfferState.SENDING]}
        result = await self._versions.update_many(
            {"policy": policy, "offer.state": unfinished}, {"$set": {"offer.state": OfferState.FAILED.value}}
        )
        return result.modified_count

    async def mark_pruned(self, policy: str, versions: Sequence[int]) -> None:
        await self._versions.update_many(
            {"policy": policy, "version": {"$in": list(versions)}}, {"$set": {"pruned": True}}
        )


@survives_outages
class ServiceVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._services: AsyncCollection[Document] = database["inference_services"]

    async def heartbeat(self, service: InferenceService) -> None:
        """Register a service, or say that it lives and what it does."""
        values = service.to_mongo()
        for name in ("_id", "heartbeat"):
            del values[name]
        await self._services.update_one(
            {"_id": service.id}, [{"$set": {**literals(values), "heartbeat": NOW}}], upsert=True
        )

    async def set_status(self, url: str, status: ServiceStatus, error: str | None = None) -> None:
        await self._services.update_one({"_id": url}, {"$set": {"status": status.value, "error": error}})

    async def remove(self, url: str) -> None:
        await self._services.delete_one({"_id": url})

    async def live(self, policy: str, ttl_s: float) -> list[InferenceService]:
        """Services of a policy whose keeper was heard of within `ttl_s` and that are not DOWN."""
        cursor = self._services.find(
            {
                "policy": policy,
                "status": {"$ne": ServiceStatus.DOWN},
                "$expr": {"$gte": ["$heartbeat", {"$subtract": [NOW, round(ttl_s * 1000)]}]},
            }
        )
        return [InferenceService.from_mongo(d) async for d in cursor]

    async def wants_full(self, policy: str, ttl_s: float) -> int | None:
        """The newest version that some engine could not put together, among keepers heard of within `ttl_s`; None: all can."""
        found = await self._services.find_one(
            {
                "policy": policy,
                "wants_full": {"$ne": None},
                "$expr": {"$gte": ["$heartbeat", {"$subtract": [NOW, round(ttl_s * 1000)]}]},
            },
            sort=[("wants_full", -1)],
        )
        return None if found is None else int(found["wants_full"])

    async def all(self) -> list[InferenceService]:
        return [InferenceService.from_mongo(d) async for d in self._services.find().sort([("_id", 1)])]
