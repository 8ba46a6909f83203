"""Episodes of one turn without tools, as `--sampler tests.system.questioner:Questioner` brings them. Their scores come later."""

from sampler import AsyncSampler, Score, ScoreComesLater, Termination


class Questioner(AsyncSampler):
    async def run(self) -> Termination:
        return self.ended_by(await self.create_chat_completions(self.opening_messages())) or Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        raise ScoreComesLater
