"""Parallel drafts and a combining turn, as `--sampler tests.system.drafts:CombinedDrafts` brings them.

Three drafts of two turns each at the same time; a fourth thread begins with the first draft's history, and the main one reads
them all. Groups tell good from bad.
"""

import asyncio

from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.scorers import Score
from shared.documents.states import Termination

DRAFTS = 3


class CombinedDrafts(AsyncSampler):
    async def run(self) -> Termination:
        drafts = await asyncio.gather(*(self.draft(f"draft-{k}") for k in range(DRAFTS)))
        opening, first = self.opening_messages(), drafts[0][0]
        await self.taken([*opening, first.message, {"role": "user", "content": "Why?"}], "fork")
        listed = " ".join(second.text for _, second in drafts)
        await self.taken([{"role": "user", "content": f"Combine: {listed}"}], None)
        return Termination.ANSWERED

    async def draft(self, thread: str) -> tuple[Turn, Turn]:
        first = await self.taken(self.opening_messages(), thread)
        second = await self.taken([{"role": "user", "content": "Again."}], thread)
        self.score_turn(second, 0.125 * (self.claim.traj_id % 2))
        return first, second

    async def taken(self, messages: list[dict[str, object]], thread: str | None) -> Turn:
        turn = await self.create_chat_completions(messages, thread=thread)
        assert turn is not None, "the context has room"
        return turn

    async def evaluate_record(self) -> Score:
        return Score(float(self.claim.traj_id % 2))
