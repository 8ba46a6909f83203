"""The benchmark's episodes without tools: `max_turns` replies, each answered by the user."""

from sampler.core.episode.sampler import AsyncSampler
from shared.documents.states import Termination


class Chat(AsyncSampler):
    async def run(self) -> Termination:
        message = {"role": "user", "content": self.task.payload.query}
        for _ in range(self.config.budget.max_turns):
            ended = self.ended_by(await self.create_chat_completions([message]))
            if ended is not None:
                return ended
            message = {"role": "user", "content": "Go on."}
        return Termination.ANSWERED
