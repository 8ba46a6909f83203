"""The benchmark's episodes without tools: `max_turns` replies, each answered by the user, with WORDS new words."""

import os

from sampler.core.episode.sampler import AsyncSampler
from scripts.bench.replies import word
from shared.documents.states import Termination

WORDS = "BENCH_WORDS"


class Chat(AsyncSampler):
    async def run(self) -> Termination:
        message = {"role": "user", "content": self.task.payload.query}
        num_words = int(os.environ.get(WORDS, "0"))
        for turn in range(self.config.budget.max_turns):
            ended = self.ended_by(await self.create_chat_completions([message]))
            if ended is not None:
                return ended
            words = (word(number) for number in range(turn * num_words, (turn + 1) * num_words))
            message = {"role": "user", "content": " ".join(["Go on.", *words])}
        return Termination.ANSWERED
