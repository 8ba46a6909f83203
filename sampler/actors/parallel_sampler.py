"""Drafts at once, then one who combines them (docs/bring/actors.md). The last seat of the order reads all drafts.

A ─┐
A ─┼─▶ B reads all three, and answers          rounds: "A*2 -> C -> B"
C ─┘
"""

import asyncio

from sampler.actors.actor_sampler import ActorSampler
from sampler.core.episode.sampler import Turn
from shared.documents.states import Termination
from shared.errors import ConfigError


class ParallelSampler(ActorSampler):
    """Drafts do not hear each other. A seat that has several turns has a thread for each."""

    async def run(self) -> Termination:
        *drafters, last = self.order()
        if not drafters:
            raise ConfigError(
                f"task {self.task.id}: its rounds have one turn; expected drafts, and one who combines them"
            )
        async with asyncio.TaskGroup() as group:
            drafts = [group.create_task(self._draft(seat, k)) for k, seat in enumerate(drafters, start=1)]
        if any(self.ended_by(draft.result()) for draft in drafts):
            return Termination.LENGTH_LIMIT
        combined = await self.speak(last, thread=f"{last}#{len(drafters) + 1}")
        return self.ended_by(combined) or Termination.ANSWERED

    async def _draft(self, seat: str, number: int) -> Turn | None:
        return await self.speak(seat, thread=f"{seat}#{number}", until=0)
