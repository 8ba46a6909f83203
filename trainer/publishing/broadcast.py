"""Broadcasting: offers each published version over the network too, and sends it to the engines that join in time.

    open a port ─▶ (announce the version with its offer) ─▶ join_s: who joins? ─▶ close ─▶ send ─▶ sent | failed

Promise: the trainer waits for no engine. Everything runs concurrently with training, on the bridge's loop; a child process
sends (`trainer/publishing/send.py`) and is killed at its time limit and restarted for the next offer. During a broadcast,
further versions are published only on disk. An engine that did not join, or whose broadcast failed, loads from disk, where
every version is. Each offer has its own group, name and port, because the membership of a group is fixed.
"""

import asyncio
import logging
import time
import uuid
from pathlib import Path
from typing import Literal

from shared.documents.offers import BroadcastOffer
from shared.documents.run import PolicyVersion
from shared.documents.states import OfferState
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.weights.files import WEIGHTS_FILE
from trainer.publishing.child_program import ChildFailed, ChildProgram
from trainer.settings.publish import BroadcastSettings

log = logging.getLogger(__name__)

ANSWER_S = 10.0  # in addition to the child's limit
JOIN_POLL_S = 0.1


class Broadcaster:
    """Broadcasts of one policy. Its coroutines run on the store's loop."""

    def __init__(self, store: Store, policy: str, settings: BroadcastSettings) -> None:
        self._store = store
        self._policy = policy
        self.settings = settings
        self._sender = ChildProgram("trainer.publishing.send")
        self._under_way: asyncio.Task[None] | None = None
        self._metrics: dict[str, float] = {}

    async def offer(self) -> BroadcastOffer | None:
        """The offer to announce with the next version. None: only disk."""
        if self._under_way is not None:
            if not self._under_way.done():
                log.info("the last broadcast is still under way: publishing from disk alone")
                return None
            self._under_way.result()  # raises an unexpected error
        s = self.settings
        try:
            question = {"do": "open", "address": s.address, "port": s.port, "limit_s": s.limit_s}
            answer = await self._sender.call(question, ANSWER_S)
        except ChildFailed as exc:
            log.warning("no broadcast is offered: %s", exc)
            return None
        return BroadcastOffer(
            address=s.address,
            port=int(answer["port"]),
            group=f"{self._policy}-{uuid.uuid4().hex}",
            backend=s.backend,
            bucket_bytes=s.bucket_bytes,
            join_s=s.join_s,
            limit_s=s.limit_s,
        )

    async def start(self, version: PolicyVersion) -> None:
        """Begin to broadcast an announced version, concurrently with the caller."""
        self._under_way = asyncio.create_task(self._go_through(version), name=f"broadcast {version.version}")

    def take_metrics(self) -> dict[str, float]:
        """Joined engines, seconds and bytes of the broadcast that ended since the last call, if any."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    async def end(self) -> None:
        """Wait for the last broadcast within its limits, and end the child."""
        if self._under_way is not None:
            await self._under_way
        await self._sender.kill()

    async def _go_through(self, version: PolicyVersion) -> None:
        started = time.monotonic()
        await self._wait_for_joins(version)
        offer = await self._store.versions.close_broadcast(self._policy, version.version)
        joined = time.monotonic() - started
        metrics = {"publish/broadcast_engines": float(len(offer.joined)), "publish/broadcast_join_s": joined}
        if offer.state is OfferState.SENDING:
            state, sent = await self._send(version, offer)
            await self._store.versions.end_broadcast(self._policy, version.version, state)
            metrics |= sent
        self._metrics = metrics

    async def _send(
        self, version: PolicyVersion, offer: BroadcastOffer
    ) -> tuple[Literal[OfferState.SENT, OfferState.FAILED], dict[str, float]]:
        request = {
            "do": "send",
            "file": str(Path(version.path) / WEIGHTS_FILE),
            "sha256": version.files[WEIGHTS_FILE]["sha256"],
            "group": offer.group,
            "backend": offer.backend,
            "world_size": offer.world_size,
            "bucket_bytes": offer.bucket_bytes,
            "device": self.settings.device,
            "limit_s": offer.limit_s,
        }
        try:
            answer = await self._sender.call(request, offer.limit_s + ANSWER_S)
        except ChildFailed as exc:
            log.warning("broadcast failed version=%d engines=%d %s", version.version, len(offer.joined), exc)
            return OfferState.FAILED, {"publish/broadcast_failed": 1.0}
        log.info(
            "broadcast version=%d engines=%d bytes=%d seconds=%.2f",
            version.version,
            len(offer.joined),
            answer["bytes"],
            answer["seconds"],
        )
        return OfferState.SENT, {
            "publish/broadcast_failed": 0.0,
            "publish/broadcast_bytes": float(answer["bytes"]),
            "publish/broadcast_seconds": float(answer["seconds"]),
        }

    async def _wait_for_joins(self, version: PolicyVersion) -> None:
        """Wait until every possible engine has joined, at most `join_s`."""
        deadline = time.monotonic() + self.settings.join_s
        with waiting(self._join_wait(version, []), inside=True) as wait:
            while time.monotonic() < deadline:
                live = await self._store.services.live(self._policy)
                offer = (await self._store.versions.get(self._policy, version.version)).offer
                assert offer is not None, "only what was offered is gone through with"
                missing = [one.url for one in live if one.broadcast_ranks > 0 and not offer.rank_of(one.id)]
                if not missing:
                    return
                wait.set(self._join_wait(version, missing))
                await asyncio.sleep(JOIN_POLL_S)

    def _join_wait(self, version: PolicyVersion, missing: list[str]) -> Wait:
        what = f"engines that join the broadcast of version {version.version}"
        return Wait(what, f"missing: {', '.join(missing)}", f"all have, for {self.settings.join_s:g} s at most")
