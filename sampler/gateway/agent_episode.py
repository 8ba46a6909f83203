"""How an episode that an agent played through the gateway ends, and which score it gets.

The score is the posted one, or the number that the agent returned, or the task's scorer's on the text that it returned, or on
the last reply.
"""

from collections.abc import Mapping

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.episode.scoring import score_text
from sampler.core.errors import AgentCrashed, ScorerFailed
from sampler.core.rendering.reply_message import Message
from sampler.core.scorers import Score
from sampler.core.scorers.answers import extract_answer
from sampler.core.scorers.scored_text import ScoredText
from sampler.gateway.crash import ACT, Evidence, scored_because
from sampler.gateway.session import AttemptSession
from sampler.gateway.task_messages import agent_messages
from shared.documents.states import Termination
from shared.outside_text import error_text
from shared.scores import usable_score


class AgentEpisode(AsyncSampler):
    """`returned`: a text, a number, or nothing."""

    returned: object

    def begin(self, session: AttemptSession) -> None:
        self._session, self.returned = session, None
        self._crash: Mapping[str, str] = {}  # why a failed agent's episode is scored, and what it said

    async def agent_messages(self) -> list[Message]:
        """The opening messages in the form that agents send. Raises ConfigError, and DataError for an image that is gone."""
        template = self.resources.policy_client(self.task.policy).template
        return await agent_messages(self.opening_messages(), template, self.resources.store.images.read)

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

    def crashed(self, crash: AgentCrashed) -> Termination:
        """How the episode of an agent that failed has ended, if the model's reply is the reason. Raises `crash`: it is not."""
        payload, session = self.task.payload, self._session
        evidence = Evidence(
            replies=session.fates.replies,
            unanswered=session.fates.unanswered,
            posted=session.score if session.fates.is_score_final else None,
        )
        why = scored_because(payload.agent_crash or self.config.agents.agent_crash, evidence, crash)
        if why is None:
            raise crash
        self._crash = {"reason": why, "error": error_text(crash)}
        if evidence.posted is None:
            self.episode.acts[ACT] = error_text(crash)
        ended = None if session.last_turn is None else self.ended_by(session.last_turn)
        return ended or (Termination.REPLY_REJECTED if evidence.posted is None else Termination.ANSWERED)

    def count(self) -> None:
        """Record what the session counted."""
        for name, count in self._session.counts.items():
            self.add_metric(f"agent_{name}", count)

    async def evaluate_record(self) -> Score:
        if self._session.score is not None:
            return Score(self._session.score, {"scorer": "agent", **self._crash}, is_final=True)
        if self._crash:
            own = self.task.payload.agent_crash_score
            score = self.config.agents.agent_crash_score if own is None else own
            return Score(score, {"scorer": ACT, **self._crash}, is_final=True)
        if isinstance(self.returned, str):
            return await self._scored(self.returned)
        if self.returned is not None:
            return Score(self._number(self.returned), {"scorer": "agent"}, is_final=True)
        return await super().evaluate_record()

    def _number(self, returned: object) -> float:
        """Raises ScorerFailed: the episode fails, and the sampler goes on."""
        try:
            return usable_score(returned)
        except ValueError as exc:
            raise ScorerFailed(f"the agent returned {exc}, or a text that has the answer, or None") from exc

    async def _scored(self, text: str) -> Score:
        """A returned text without the answer's form is the answer itself."""
        scored = ScoredText(text)
        answer = extract_answer(scored.answer_text, self.task.payload.answer_schema)
        return await score_text(self, scored, answer or scored.answer_text.strip() or None)
