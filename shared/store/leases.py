"""Verbs on leases of devices: a holder claims, takes, renews and releases; occupants sleep for it and wake after it.

Mutual exclusion: `take` succeeds only if every live occupant sleeps, `wake` only if the lease is free or over. A lease that is
over is never renewed, so an occupant that wakes then cannot meet its holder.
"""

from datetime import timedelta
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.leases import Lease, LeaseClaim
from shared.documents.states import LeaseKind, LeaseState
from shared.errors import DataError
from shared.store.malformed import readable
from shared.store.pipelines import NOW, after, insert_once, literal
from shared.store.retry import survives_outages

Document = dict[str, Any]
CLAIMED = [LeaseState.WANTED.value, LeaseState.HELD.value]

LASTS: Document = {"$gt": ["$free_at", NOW]}
IS_FREE: Document = {"$or": [{"$eq": ["$state", LeaseState.FREE.value]}, {"$not": [LASTS]}]}
NONE_OCCUPIES: Document = {
    "$not": [
        {
            "$anyElementTrue": {
                "$map": {
                    "input": "$occupants",
                    "as": "o",
                    "in": {"$and": [{"$eq": ["$$o.asleep_for", None]}, {"$gt": ["$$o.free_at", NOW]}]},
                }
            }
        }
    ]
}


def lease_id(kind: LeaseKind, device: str) -> str:
    return f"{kind}:{device}"


@survives_outages
class LeaseVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._leases: AsyncCollection[Document] = database["leases"]

    async def ensure(self, kind: LeaseKind, device: str) -> Lease:
        """The lease of a device; it is made if there is none."""
        new = Lease(id=lease_id(kind, device), kind=kind, device=device)
        await self._leases.update_one({"_id": new.id}, insert_once(new.to_mongo()), upsert=True)
        return await self.get(new.id)

    async def get(self, lease: str) -> Lease:
        document = await self._leases.find_one({"_id": lease})
        if document is None:
            raise DataError(f"lease {lease}: there is none; expected `ensure` before")
        return Lease.from_mongo(document)

    async def claimed(self, lease: str) -> Lease | None:
        """The lease if it is claimed and lasts, by the server's clock."""
        document = await self._leases.find_one({"_id": lease, "state": {"$in": CLAIMED}, "$expr": LASTS})
        return None if document is None else Lease.from_mongo(document)

    async def all(self) -> list[Lease]:
        return await readable(Lease, self._leases.find().sort([("_id", 1)]))

    # ------------------------------------------------------------------ the holder

    async def claim(self, lease: str, holder: str, lease_s: float) -> LeaseClaim | None:
        """Claim a free lease for `lease_s`; None: another holder has it. `holder` must be unique to this claim."""
        seen = await self.get(lease)
        if seen.holder != holder:
            await self._leases.update_one(
                {"_id": lease, "attempt": seen.attempt, "$expr": IS_FREE},
                [
                    {
                        "$set": {
                            "attempt": seen.attempt + 1,
                            "state": LeaseState.WANTED.value,
                            "holder": literal(holder),
                            "free_at": after(lease_s),
                        }
                    }
                ],
            )
            seen = await self.get(lease)
        return LeaseClaim(lease, holder, seen.attempt) if seen.holder == holder else None

    async def take(self, claim: LeaseClaim) -> bool:
        """Whether the device is the holder's: every live occupant sleeps. False: ask again, or the lease is over."""
        await self._leases.update_one(
            {
                **_mine(claim),
                "state": LeaseState.WANTED.value,
                "$expr": {"$and": [LASTS, NONE_OCCUPIES]},
            },
            [{"$set": {"state": LeaseState.HELD.value}}],
        )
        return await self.is_held(claim)

    async def is_held(self, claim: LeaseClaim) -> bool:
        held = {**_mine(claim), "state": LeaseState.HELD.value, "$expr": LASTS}
        return await self._leases.find_one(held, {"_id": 1}) is not None

    async def renew(self, claim: LeaseClaim, lease_s: float) -> bool:
        """Extend a claim that lasts. False: it is over, for good."""
        done = await self._leases.update_one(
            {**_mine(claim), "state": {"$in": CLAIMED}, "$expr": LASTS}, [{"$set": {"free_at": after(lease_s)}}]
        )
        return done.matched_count == 1

    async def release(self, claim: LeaseClaim) -> None:
        """End the claim. No effect if another one has begun."""
        await self._leases.update_one(
            {**_mine(claim), "state": {"$in": CLAIMED}},
            [{"$set": {"state": LeaseState.FREE.value, "holder": None, "free_at": None}}],
        )

    # ------------------------------------------------------------------ occupants

    async def occupy(self, lease: str, occupant: str, service: str, stay_s: float, *, asleep: bool) -> Lease:
        """Register an occupant for `stay_s`. `asleep`: its engine does not use the device before `wake`."""
        mine = {
            "id": literal(occupant),
            "service": literal(service),
            "asleep_for": "$attempt" if asleep else None,
            "free_at": after(stay_s),
        }
        await self._leases.update_one(
            {"_id": lease, "occupants.id": {"$ne": occupant}},
            [{"$set": {"occupants": {"$concatArrays": [_not_long_dead(), [mine]]}}}],
        )
        return await self.get(lease)

    async def stay(self, lease: str, occupant: str, stay_s: float) -> bool:
        """Extend an occupant's time. False: it is not registered."""
        done = await self._leases.update_one(
            {"_id": lease, "occupants.id": occupant},
            [{"$set": {"occupants": _changed(occupant, {"free_at": after(stay_s)})}}],
        )
        return done.matched_count == 1

    async def confirm(self, lease: str, occupant: str, attempt: int) -> bool:
        """The occupant's engine has released its memory for this attempt. False: the attempt is over, or it is not registered."""
        done = await self._leases.update_one(
            {
                "_id": lease,
                "attempt": attempt,
                "state": {"$in": CLAIMED},
                "occupants.id": occupant,
                "$expr": LASTS,
            },
            {"$set": {"occupants.$.asleep_for": attempt}},
        )
        return done.matched_count == 1

    async def wake(self, lease: str, occupant: str, attempt: int, stay_s: float) -> bool:
        """Whether the occupant, asleep for `attempt`, may use the device again. False: it is claimed.

        It then counts as alive for `stay_s`, also if it has counted as dead: it must be waited for from here on.
        """
        awake = {"asleep_for": None, "free_at": after(stay_s)}
        await self._leases.update_one(
            {
                "_id": lease,
                "occupants": {"$elemMatch": {"id": occupant, "asleep_for": attempt}},
                "$expr": IS_FREE,
            },
            [{"$set": {"occupants": _changed(occupant, awake)}}],
        )
        mine = (await self.get(lease)).occupant(occupant)
        return mine is not None and mine.asleep_for is None

    async def leave(self, lease: str, occupant: str) -> None:
        """The occupant's engine has ended."""
        await self._leases.update_one({"_id": lease}, {"$pull": {"occupants": {"id": occupant}}})


def _mine(claim: LeaseClaim) -> Document:
    return {"_id": claim.lease, "attempt": claim.attempt, "holder": claim.holder}


def _changed(occupant: str, fields: Document) -> Document:
    """The occupants, with other fields of one."""
    chosen = {"$cond": [{"$eq": ["$$o.id", literal(occupant)]}, {"$mergeObjects": ["$$o", fields]}, "$$o"]}
    return {"$map": {"input": "$occupants", "as": "o", "in": chosen}}


def _not_long_dead() -> Document:
    """Occupants without those that were last heard of more than an hour ago: the list stays short."""
    hour_ago = {"$subtract": [NOW, round(timedelta(hours=1).total_seconds() * 1000)]}
    return {"$filter": {"input": "$occupants", "as": "o", "cond": {"$gt": ["$$o.free_at", hour_ago]}}}
