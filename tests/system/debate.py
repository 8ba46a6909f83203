"""Two policies who take turns, as `--sampler tests.system.debate:Debate` brings them. Groups tell good from bad for both.

An episode whose task says `hold`, a file, waits after its first round as long as that file is there.
"""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from sampler.core.episode.sampler import AsyncSampler
from sampler.scorers import Score
from shared.documents.states import Termination

OWNER, JUDGE = "solver", "judge"


class Round(BaseModel):
    hold: Path | None = None


class Debate(AsyncSampler):
    async def run(self) -> Termination:
        hold = self.own_payload(Round).hold
        for k in range(2):
            turn = await self.create_chat_completions([{"role": "user", "content": f"round {k}"}])
            heard = "nothing" if turn is None else turn.text
            await self.create_chat_completions([{"role": "user", "content": f"heard {heard}"}], policy=JUDGE)
            while hold is not None and self.claim.traj_id == 0 and await asyncio.to_thread(hold.exists):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # a file's removal is not signalled
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(float(self.claim.traj_id % 2), others={JUDGE: float(self.claim.traj_id < 2)})
