"""Receives published weights by broadcast: an engine's part in it, from the offer in `policy_versions` to the last bucket.

    offered? ─▶ join ─▶ (closed: members and ranks are fixed) ─▶ pause ─▶ form the group ─▶ buckets ─▶ leave it ─▶ continue

Promise: before the engine is touched, these were checked: it answers, the sender's port is reachable, and the published file's
header lists the engine's tensors. If the engine receives only a part, it stays paused and EngineUnavailable is raised: it may
hold two versions.

SGLang 0.5.23, from its source: a broadcast is refused outside `begin_weight_update` … `end_weight_update`; a session left open
blocks the next one; each bucket is loaded as it arrives; joining and receiving block its scheduler, until torch's time-out (30
minutes for gloo, 10 for NCCL) if the other side stalls. So all waits here have their own limits.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import EngineError, EngineRefused, EngineUnavailable
from sampler.engine.keeper.update import require_version
from shared.documents.offers import BroadcastOffer, Joined
from shared.documents.run import PolicyVersion
from shared.documents.states import OfferState
from shared.errors import DataError
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.weights.buckets import Bucket, buckets_of
from shared.weights.files import WEIGHTS_FILE
from shared.weights.layout import CheckpointLayout, check_layout

log = logging.getLogger(__name__)

REACH_S = 5.0  # to connect to the sender's port
POLL_S = 0.1
LATE_S = 5.0  # on top of `join_s`: then the offering trainer is gone


@dataclass(frozen=True, slots=True)
class Place:
    """What an engine will receive, and its ranks."""

    version: int
    offer: BroadcastOffer
    rank: int
    buckets: list[Bucket]

    @property
    def bytes(self) -> int:
        return sum(bucket.end - bucket.start for bucket in self.buckets)


class Receiver:
    """One engine's part in broadcasts. `layout`: of the weights it was started from."""

    def __init__(
        self, store: Store, client: EngineClient, policy: str, layout: CheckpointLayout, willing: bool
    ) -> None:
        self._store = store
        self._client = client
        self._policy = policy
        self._layout = layout
        self._willing = willing
        self._url = ""
        self._tried = -1  # last version whose offer was tried: each is tried once
        self.ranks = 0  # number of ranks with which the engine would join

    def meet(self, url: str, ranks: int) -> None:
        """Set the engine, once it answers."""
        self._url, self.ranks = url, ranks if self._willing else 0

    def is_offered(self, version: PolicyVersion) -> bool:
        offer = version.offer
        return (
            self.ranks > 0 and version.version != self._tried and offer is not None and offer.state is OfferState.OPEN
        )

    async def join(self, version: PolicyVersion) -> Place | None:
        """The engine's place once the members are fixed; until then it keeps serving. None: the broadcast excludes it."""
        assert version.offer is not None, "it is offered"
        self._tried = version.version
        folder = Path(version.path)
        try:
            await asyncio.to_thread(check_layout, folder, self._layout)
            buckets = await asyncio.to_thread(buckets_of, folder / WEIGHTS_FILE, version.offer.bucket_bytes)
            await _reach(version.offer)
            await self._client.model_info(self._url)  # a dead engine would delay the others
        except (DataError, OSError, EngineError) as exc:  # a time-out is an OSError
            log.warning(
                "not joining the broadcast version=%d url=%s %s: %s",
                version.version,
                self._url,
                type(exc).__name__,
                exc,
            )
            return None
        engine = Joined(service=self._url, ranks=self.ranks)
        if not await self._store.versions.join_broadcast(self._policy, version.version, engine):
            return None
        offer = await self._settled(version.version, version.offer.join_s + LATE_S)
        rank = offer.rank_of(self._url) if offer else None
        return Place(version.version, offer, rank, buckets) if offer and rank else None

    async def _settled(self, version: int, limit_s: float) -> BroadcastOffer | None:
        """The offer once sending begins; None if it was withdrawn or expired."""
        deadline = time.monotonic() + limit_s
        end = f"the trainer begins to send, or withdraws it, for {limit_s:g} s at most"
        with waiting(Wait(f"the broadcast of version {version}", "other engines may still join", end)):
            while time.monotonic() < deadline:
                offer = (await self._store.versions.get(self._policy, version)).offer
                if offer is None or offer.state not in (OfferState.OPEN, OfferState.SENDING):
                    return None
                if offer.state is OfferState.SENDING:
                    return offer
                await asyncio.sleep(POLL_S)
        log.warning("the offer was not closed version=%d limit_s=%g: loading from disk", version, limit_s)
        return None

    async def receive(self, place: Place, mode: Literal["retract", "abort"]) -> None:
        """Pause, receive, check the served version, continue. Raises EngineUnavailable, with the engine paused, if incomplete."""
        try:
            async with asyncio.timeout(place.offer.limit_s):
                await self._client.pause(self._url, mode)
                await self._take(place)
                await require_version(self._client, self._url, place.version)
        except (TimeoutError, EngineRefused) as exc:
            await self._clean_up(place.offer.group)
            raise EngineUnavailable(
                f"{self._url} did not get all of version {place.version} by broadcast; it stays paused: "
                f"{type(exc).__name__} {exc}"
            ) from exc
        await self._clean_up(place.offer.group, session=False)
        await self._client.resume(self._url)

    async def _take(self, place: Place) -> None:
        offer = place.offer
        group = {
            "master_address": offer.address,
            "master_port": offer.port,
            "rank_offset": place.rank,
            "world_size": offer.world_size,
            "group_name": offer.group,
            "backend": offer.backend,
        }
        await self._ask("/init_weights_update_group", group)
        try:
            await self._ask("/begin_weight_update", {})
        except EngineRefused:  # left open by a keeper that was killed
            await self._ask("/end_weight_update", {})
            await self._ask("/begin_weight_update", {})
        for bucket in place.buckets:
            await self._ask(
                "/update_weights_from_distributed", _update(bucket, place, last=bucket is place.buckets[-1])
            )
        await self._ask("/end_weight_update", {})

    async def _clean_up(self, group: str, *, session: bool = True) -> None:
        """Remove all traces of the broadcast from the engine. Refusals mean that there are none."""
        with contextlib.suppress(EngineError):
            if session:
                await self._ask("/end_weight_update", {})
        with contextlib.suppress(EngineError):
            await self._ask("/destroy_weights_update_group", {"group_name": group})

    async def _ask(self, path: str, body: dict[str, Any]) -> None:
        await self._client.change_weights(self._url, path, body)


async def _reach(offer: BroadcastOffer) -> None:
    """Check the connection first: SGLang would try for half an hour. Raises OSError."""
    async with asyncio.timeout(REACH_S):
        _, writer = await asyncio.open_connection(offer.address, offer.port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _update(bucket: Bucket, place: Place, *, last: bool) -> dict[str, Any]:
    """The last bucket also sets the label and empties the cache."""
    body: dict[str, Any] = {
        "names": [tensor.name for tensor in bucket.tensors],
        "dtypes": [tensor.dtype for tensor in bucket.tensors],
        "shapes": [list(tensor.shape) for tensor in bucket.tensors],
        "group_name": place.offer.group,
        "load_format": "flattened_bucket",
        "flush_cache": last,
    }
    return body | ({"weight_version": str(place.version)} if last else {})
