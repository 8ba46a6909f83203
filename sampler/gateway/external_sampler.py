"""The episode of an agent that runs elsewhere. Its documents are its state: any gateway process goes on with it.

claim ─▶ requests, each with the attempt's key ─▶ end: score, answer, error, or given back
         any process: `resumed` where the attempt is not known yet   any process: `play`, with the documents as they are
"""

from collections.abc import Mapping, Sequence

from sampler.core.episode.journal import Journal
from sampler.core.episode.resources import Resources
from sampler.core.errors import AgentCrashed, AttemptReleased, EngineError
from sampler.core.rendering.template import ToolSchema
from sampler.core.rendering.turn import Turn
from sampler.gateway.agent_episode import AgentEpisode
from sampler.gateway.config import AgentPlayConfig
from sampler.gateway.session import AttemptSession
from sampler.gateway.shared_journal import SharedJournal
from shared.documents import Claim, Record
from shared.documents.agent_sessions import SessionEnd
from shared.documents.states import Termination
from shared.episodes.state import EpisodeState


class ExternalSampler(AgentEpisode):
    """`end`: how the agent ended the attempt, which `run` carries out."""

    _goes_on_elsewhere = True
    end = SessionEnd()
    open_turns: Sequence[int] = ()

    @classmethod
    def begun(cls, resources: Resources, claim: Claim) -> tuple["ExternalSampler", AttemptSession]:
        """An attempt without requests."""
        sampler = cls(resources, claim)
        config = resources.config.part(AgentPlayConfig).agents
        rules = (config.agent_parameters, config.agent_head_lines, config.agent_output_format)
        session = AttemptSession(sampler, *rules)
        sampler.begin(session)
        return sampler, session

    @classmethod
    async def resumed(
        cls, resources: Resources, claim: Claim, record: Record
    ) -> tuple["ExternalSampler", AttemptSession]:
        """The attempt as its documents say. Raises EngineError for documents that contradict each other."""
        store = resources.store
        sampler, session = cls.begun(resources, claim)
        state = EpisodeState(record, (await store.records.dispatches_of([record.id]))[record.id])
        numbers = [turn.number for turn in state.turns]
        if state.problems or numbers != list(range(len(numbers))):
            raise EngineError("; ".join(state.problems) or f"of the attempt's turns only {numbers} are there")
        hashes = sorted({turn.dispatch.tools_hash for turn in state.turns} - {""})
        schemas = await store.tool_schemas.get_many(hashes)
        lost = [name for name in hashes if name not in schemas or schemas[name].left_out]
        if lost:
            raise EngineError(f"the tool list {lost[0]} of the attempt's requests is not whole")
        tools = {name: schemas[name].schemas() for name in hashes}
        session.resume(state, sampler._resumed_turns(state, tools))
        sampler.open_turns = [turn.number for turn in state.turns if turn.is_open and not state.was_retried(turn)]
        return sampler, session

    @property
    def answered_all(self) -> bool:
        """Whether every request that this process knows of has its reply, and nothing else happened: then its documents say
        what is known here, unless another process wrote more."""
        return not self.open_turns and self._session.answered_all(len(self.episode.dispatches))

    @property
    def played_at(self) -> float:
        """When the attempt was last seen not to have ended at another process (monotonic seconds)."""
        assert isinstance(self._journal, SharedJournal)
        return self._journal.played_at

    def new_journal(self) -> Journal:
        return SharedJournal(self.resources.store, self.resources.worker)

    async def run(self) -> Termination:
        """Raises what the agent said, or what its requests met."""
        if self.end.given_back:
            raise AttemptReleased(self.end.error or "given back")
        session = self._session
        if self.end.error is not None and session.failure is None and session.limit is None:
            return self._failed(self.end.error)  # after a limit or a failure the agent's error follows from that
        if self.open_turns:
            raise EngineError(
                f"turn {self.open_turns[0]} was asked and never answered, and the agent did not ask again: its gateway "
                "process ended"
            )
        self.returned = self.end.answer
        if self.end.score is not None:
            session.score = self.end.score
        termination = self.termination()
        self.count()
        return termination

    def _failed(self, error: str) -> Termination:
        fates = self._session.fates
        fates.end(len(self.open_turns))
        fates.is_score_final = not fates.unanswered
        try:
            return self.crashed(AgentCrashed(error))
        finally:
            self.count()

    def _resumed_turns(self, state: EpisodeState, tools: Mapping[str, Sequence[ToolSchema]]) -> list[Turn]:
        """Requests without a reply count as asked. A request that is not closed may still be given tool results."""
        turns = []
        for turn in state.turns:
            dispatch = turn.dispatch
            self._journal.resume(dispatch, (turn.policy, turn.thread))
            self.episode.dispatches.append(dispatch.id)
            self.episode.tool_calls[dispatch.id] = tuple(dispatch.tool_calls)
            if dispatch.response is not None:
                self.episode.replied(dispatch, self.task.policy)
                turns.append(self._threads.resume(turn, state, tools.get(dispatch.tools_hash, ())))
        self._in_flight.elsewhere.update(state.open_turns)
        self.episode.turn_scores.update(state.scores)
        return turns
