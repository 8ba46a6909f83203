"""The benchmark's episodes without tools: `max_turns` replies, each to a text of the user that ends with WORDS new words."""

import os

from sampler.core.episode.sampler import AsyncSampler
from scripts.bench.replies import SYLLABLES, word
from shared.documents.states import Termination

WORDS = "BENCH_WORDS"
FIRST_WORD = len(SYLLABLES) ** 2  # of three syllables, as the 400,000 after it


class Chat(AsyncSampler):
    async def run(self) -> Termination:
        num_words = int(os.environ.get(WORDS, "0"))
        for turn in range(self.config.budget.max_turns):
            first = FIRST_WORD + turn * num_words
            words = (word(number) for number in range(first, first + num_words))
            text = " ".join(["Go on." if turn else self.task.payload.query, *words])
            ended = self.ended_by(await self.create_chat_completions([{"role": "user", "content": text}]))
            if ended is not None:
                return ended
        return Termination.ANSWERED
