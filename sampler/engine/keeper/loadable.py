"""The files of a version as an engine loads them: read from the trainer's disk or pulled, and merged into complete weights."""

import asyncio
from dataclasses import replace

from sampler.engine.keeper.pulling import PulledVersions
from sampler.engine.keeper.target import loadable_from
from shared.documents.run import PolicyVersion
from shared.store import Store
from shared.weights.assembly import Assembly, Reached


class LoadableVersions:
    """`assembly` and `pulled`: over the keeper's own folders. Without `pulled` it reads the trainer's disk. `wants_full`: the
    version that could not be merged; None: the last one could."""

    def __init__(self, store: Store, assembly: Assembly, pulled: PulledVersions | None) -> None:
        self._store, self._assembly, self._pulled = store, assembly, pulled
        self.wants_full: int | None = None

    @property
    def url(self) -> str | None:
        """Where others pull them; None: nothing was pulled."""
        return self._pulled.url if self._pulled else None

    async def merged(self, target: PolicyVersion, serving: int) -> Reached:
        """Of `target`, or of the newest version up to it that the engine does not serve yet. `serving`: the engine's version, or
        -1. Raises DataError."""
        published = await loadable_from(self._store, target)
        self.wants_full = target.version
        before = min(serving, target.version - 1)  # an evaluation goes back to an older version
        local = None
        if pulled := await self._pulled_for(target):
            local = await pulled.fetch(target, published, self._assembly)
            target, published = local.target, local.published
        reached = await asyncio.to_thread(self._assembly.reach, target, published, before)
        if not reached.problems:
            self.wants_full = None
        if local is not None:
            seconds = {**reached.seconds, "pull": local.seconds}
            reached = replace(reached, seconds=seconds, bytes=reached.bytes + local.bytes)
        return reached

    async def adapter_of(self, target: PolicyVersion) -> PolicyVersion:
        """For an engine that loads adapters itself: `target`, with the folder on this machine. Raises NotPulled."""
        pulled = await self._pulled_for(target) if target.adapter else None
        return await pulled.fetch_adapter(target) if pulled else target

    async def keep_only(self, version: int) -> None:
        """Delete what was merged for others."""
        await asyncio.to_thread(self._assembly.keep_only, version)

    async def _pulled_for(self, target: PolicyVersion) -> PulledVersions | None:
        """None: its files are read from the trainer's disk."""
        pulled = self._pulled
        return pulled if pulled is not None and await asyncio.to_thread(pulled.is_needed, target) else None
