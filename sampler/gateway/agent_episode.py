"""How an episode that an agent played through the gateway ends, and which score it gets.

The score is the posted one, or the number that the agent returned, or the task's scorer's on the text that it returned, or on
the last reply.
"""

from sampler.errors import AgentCrashed
from sampler.gateway.session import AttemptSession
from sampler.sampler import AsyncSampler
from sampler.scorers import Score
from sampler.scorers.answers import extract_answer
from sampler.scoring import score_text
from shared.documents.states import Termination


class AgentEpisode(AsyncSampler):
    """`returned`: a text, a number, or nothing."""

    returned: str | float | None

    def begin(self, session: AttemptSession) -> None:
        self._session, self.returned = session, None

    def termination(self) -> Termination:
        """Raises what failed the episode."""
        session = self._session
        if session.failure is not None:  # the agent went on without a reply that it had asked for
            raise session.failure
        if session.limit is not None:
            return session.limit
        if session.last_turn is None:
            raise AgentCrashed("the agent ended without a single reply of the model")
        return self.ended_by(session.last_turn) or Termination.ANSWERED

    def count(self) -> None:
        """Record what the session counted."""
        for name, count in self._session.counts.items():
            self.add_metric(f"agent_{name}", count)

    async def evaluate_record(self) -> Score:
        if self._session.score is not None:
            return Score(self._session.score, {"scorer": "agent"}, is_final=True)
        if isinstance(self.returned, str):
            return await self._scored(self.returned)
        if self.returned is not None:
            return Score(float(self.returned), {"scorer": "agent"}, is_final=True)
        return await super().evaluate_record()

    async def _scored(self, text: str) -> Score:
        """A returned text without the answer's form is the answer itself."""
        return await score_text(self, text, extract_answer(text, self.task.payload.answer_schema) or text.strip())
