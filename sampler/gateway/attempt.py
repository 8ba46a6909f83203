"""One attempt of an agent elsewhere, in one gateway process: claimed here or by any other process of the run.

    Attempt ─▶ AttemptSession, built from the documents, and again where another process went on with it

Nothing here is needed to continue: a process that ends, or is killed, loses none of it.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time

from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.scoring import deadline_of
from sampler.core.errors import EngineError
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    GatewayError,
    Problem,
    RetryRequest,
    SentRequest,
    checked_score,
    reply_id,
)
from sampler.gateway.external_sampler import ExternalSampler
from sampler.gateway.received_images import sees
from sampler.gateway.resuming import REFUSED
from sampler.gateway.session import SENT_AGAIN, AttemptSession
from sampler.gateway.shared_journal import ENDED, StaleAttempt
from sampler.gateway.streaming import ReplyStream, reply_stream
from sampler.gateway.unused import unused_names
from shared.documents import Claim, Record
from shared.documents.agent_sessions import AgentSession, MetLimit, SessionEnd
from shared.documents.states import RecordStatus, Termination
from shared.errors import ConfigError, LeaseLost

log = logging.getLogger(__name__)

MOST_RELOADS = 20  # of one request: each time another process was faster
ENDING_S = 10.0  # for requests in other processes, which cancel them within a second; a killed one does not
RENEWED_BEFORE = 0.1  # of the idle time: requests in between renew nothing


# 33 methods: one attempt that other processes may serve: each verb first makes sure that it is known whole
class Attempt:
    """One attempt in this process. It answers what `app` asks of a session. `is_new`: just claimed here, so that nothing needs to
    be read; if another process went on with it meanwhile, the first request finds its number taken."""

    def __init__(self, resources: Resources, claim: Claim, idle_s: float, *, is_new: bool = False) -> None:
        self._resources = resources
        self._idle_s = idle_s
        self._loading, self._ending = asyncio.Lock(), asyncio.Lock()
        self._current: AttemptSession | None = None
        self._sampler: ExternalSampler | None = None
        self._earlier: list[AttemptSession] = []  # that have requests, and do not know all turns any more
        self._asking = 0
        self._is_new = is_new
        # When its last renewal began: its lease lasts from then. When it had ended: what the database said before is outdated.
        self._renewed = self._taken = time.monotonic() if is_new else -idle_s
        self._is_elsewhere, self._is_untold = False, is_new
        self._name, self._replays = secrets.token_hex(4), 0
        self.claim = claim
        self.played: ExternalSampler | None = None  # the episode, once this process has ended it

    @property
    def models(self) -> list[str]:
        return self._resources.config.policies

    @property
    def max_tokens(self) -> int:
        return self._resources.config.budget.max_tokens

    @property
    def sees(self) -> bool:
        """Whether one of the models reads images."""
        return sees(self._resources, self.models)

    @property
    def is_busy(self) -> bool:
        return self._asking > 0

    @property
    def has_open_request(self) -> bool:
        """A request runs in this process."""
        return any(session.has_open_request for session in self._sessions)

    @property
    def played_at(self) -> float:
        """When a request of this process last saw that the attempt has not ended (monotonic seconds)."""
        return -math.inf if self._sampler is None else self._sampler.played_at

    @property
    def is_ending(self) -> bool:
        return self._ending.locked()

    @property
    def is_idle(self) -> bool:
        """No request for so long that its lease is over."""
        return not self.is_busy and time.monotonic() - self._renewed > self._idle_s

    @property
    def has_place(self) -> bool:
        """Whether this process serves it, or claimed it and no other has served it since."""
        return self.is_busy or not (self._is_elsewhere or self.is_idle)

    @property
    def needs_renewal(self) -> bool:
        """A request runs, or the process lives on after it told the agent of its claim, whose lease is short until then."""
        return self.is_busy or (self._is_untold and not self._is_elsewhere)

    def is_held(self, held: bool, queried_at: float) -> None:
        """Whether this process had the slot, as the database said when it was asked."""
        if self._taken < queried_at:  # else it may have taken it since
            self._is_elsewhere = not held

    def stream_of(self, request: ChatRequest) -> ReplyStream | None:
        return reply_stream(request, self._resources.config.prompt.tool_call_parser)

    def unused(self, request: ChatRequest) -> list[str]:
        return unused_names(request, self._resources.config, self.claim.task)

    async def referenced(self, request: ChatRequest) -> ChatRequest:
        """Raises GatewayError."""
        return await (await self._session()).referenced(request)

    async def chat(self, request: ChatRequest, sent: SentRequest, stream: ReplyStream | None = None) -> ChatReply:
        """Raises GatewayError. Cancelling the caller cancels the request at the engine."""
        self._asking += 1
        try:
            await self.renew()
            may_miss_turns, was_late = True, False
            for _ in range(MOST_RELOADS):
                session = await self._session()
                if was_late and not sent.is_again and session.was_repeated(sent.identity):
                    raise RetryRequest(SENT_AGAIN)
                try:
                    return await self._told(await session.chat(request, sent, stream))
                except StaleAttempt:
                    was_late = True
                    self._forget(session)
                except GatewayError as error:
                    if error.problem is not Problem.INVALID or not may_miss_turns:
                        await self._note_limit(session, error)
                        raise
                    may_miss_turns = False  # without another process's turns, a right request may look wrong
                    self._forget(session)
            raise StaleAttempt
        finally:
            self._asking -= 1

    async def count_tokens(self, request: ChatRequest) -> int:
        return await (await self._session()).count_tokens(request)

    async def give_score(self, score: float, turn: str | None = None) -> None:
        """Of the attempt, or of the turn with this reply id, which any process may have served. Raises GatewayError."""
        score = checked_score(score)
        await self.renew()
        sessions, record = self._resources.store.sessions, self.claim.record_id
        if turn is None:
            if not await sessions.post_score(record, score):
                raise GatewayError(Problem.NO_KEY, ENDED)
            return
        number = turn.rpartition("-")[2]
        known = number.isdecimal() and reply_id(f"{record}:{number}") == turn
        if not known or not await sessions.score_turn(record, number, score):
            if await sessions.over([record]):
                raise GatewayError(Problem.NO_KEY, ENDED)
            raise GatewayError(Problem.INVALID, f"turn {turn!r} is no reply of this attempt")

    async def note_refused(self, error: GatewayError) -> None:
        """A request of the agent was answered with this error. Noted for the process that ends the attempt, unless a limit is the
        reason, which `chat` notes."""
        if error.problem is Problem.NO_KEY or isinstance(error, RetryRequest):
            return
        with contextlib.suppress(GatewayError):
            session = await self._session()
            if session.limit is None and session.failure is None:
                ended = Termination.LENGTH_LIMIT if error.is_limit else REFUSED
                refusal = MetLimit(termination=ended, turn=len(session.sampler.episode.dispatches))
                await self._resources.store.sessions.meet_limit(self.claim.record_id, refusal)

    async def renew(self, *, always: bool = False, if_own: bool = False) -> None:
        """Renew the lease of the slot, which is this process's from then on. Raises GatewayError if it is lost.

        `if_own`: only if no other process has it.
        """
        now, worker = time.monotonic(), self._resources.worker
        is_known = not (self._is_elsewhere or self._is_untold)  # that this process has the slot
        if not always and is_known and now - self._renewed < RENEWED_BEFORE * self._idle_s:
            return
        if await self._resources.store.tasks.renew_leases([self.claim], self._idle_s, worker, if_own=if_own):
            raise GatewayError(Problem.NO_KEY, f"{ENDED}: it had no request for {self._idle_s:g} s, or is finished")
        self._renewed, self._taken = now, time.monotonic()
        self._is_elsewhere = self._is_untold = False

    async def end(self, end: SessionEnd) -> Record:
        """End the attempt as `end` says, or as an earlier call did. Returns its record, with its score.

        Raises GatewayError if the attempt is lost.
        """
        async with self._ending:  # an end that is sent again while a scorer works waits for that
            record = await self._ended(end)
        is_lost = record.status is RecordStatus.ABANDONED and not (record.session and is_given_back(record.session))
        if is_lost:
            raise GatewayError(
                Problem.NO_KEY, f"{ENDED}: another agent has its slot, and no score counts ({record.error})"
            )
        return record

    async def close(self) -> None:
        """Cancel the requests of this process."""
        for session in self._sessions:
            await session.close()

    # ------------------------------------------------------------------ inside

    @property
    def _sessions(self) -> list[AttemptSession]:
        return [*self._earlier, *([] if self._current is None else [self._current])]

    async def _ended(self, end: SessionEnd) -> Record:
        store, name = self._resources.store, self.claim.record_id
        record = await store.sessions.end(name, end)
        assert record is not None, "an attempt has a record with a session"
        assert record.session is not None, "an attempt has a record with a session"
        self._asking += 1  # its lease is renewed: a scorer may take long
        try:
            await self.close()
            if record.status is RecordStatus.RUNNING:
                with contextlib.suppress(GatewayError):  # of a slot that is lost, `play` says so
                    await self.renew(always=True)  # a lease that ends soon is not renewed before the scorer is done
                sampler = await self._known_whole(record) or await self._whole(record)
                sampler.end = record.session.end or end
                await play(sampler)
                self.played = sampler
            else:
                await self._finish_again(record)
        finally:
            self._asking -= 1
        ended = await store.records.get(name)
        assert ended is not None, "records are not deleted while the run goes on"
        return ended

    async def _session(self) -> AttemptSession:
        async with self._loading:
            if self._current is not None and self._sampler is not None and self._sampler.open_turns:
                self._forget(self._current)
            if self._current is None and self._is_new:
                self._sampler, self._current = ExternalSampler.begun(self._resources, self.claim)
            elif self._current is None:
                self._sampler, self._current = await self._loaded()
            self._is_new = False
            return self._current

    async def _told(self, reply: ChatReply) -> ChatReply:
        if reply.is_replayed:
            self._replays += 1
            await self._resources.store.sessions.count_replays(self.claim.record_id, self._name, self._replays)
        return reply

    def _forget(self, session: AttemptSession) -> None:
        if self._current is session:
            self._earlier = [one for one in (*self._earlier, session) if one.has_open_request]
            self._current = None

    async def _note_limit(self, session: AttemptSession, error: GatewayError) -> None:
        if error.problem in (Problem.LIMIT, Problem.TOO_LONG) and session.limit is not None:
            limit = MetLimit(termination=session.limit, turn=len(session.sampler.episode.dispatches))
            await self._resources.store.sessions.meet_limit(self.claim.record_id, limit)

    async def _finish_again(self, record: Record) -> None:
        """A process may have ended between the writes of the record and of the slot."""
        tasks = self._resources.store.tasks
        try:
            if record.status is RecordStatus.SCORED and record.score is not None:
                await tasks.finish_slot(self.claim, record.score)
            elif record.status is RecordStatus.COMPLETED:
                deadline_s = deadline_of(ExternalSampler(self._resources, self.claim))
                without = None if record.without_feedback is None else record.without_feedback.score
                if deadline_s is not None:
                    await tasks.await_feedback(self.claim, deadline_s, score_without=without)
        except LeaseLost as exc:
            log.info("nothing to finish: %s", exc)

    async def _loaded(self) -> tuple[ExternalSampler, AttemptSession]:
        record = await self._resources.store.records.get(self.claim.record_id)
        session = None if record is None else record.session
        if record is None or session is None or session.end is not None or record.status is not RecordStatus.RUNNING:
            raise GatewayError(Problem.NO_KEY, ENDED)
        return await self._resumed(record)

    async def _resumed(self, record: Record) -> tuple[ExternalSampler, AttemptSession]:
        try:
            return await ExternalSampler.resumed(self._resources, self.claim, record)
        except (EngineError, ConfigError) as exc:
            raise GatewayError(Problem.FAILED, f"the attempt cannot be continued: {exc}") from exc

    async def _known_whole(self, record: Record) -> ExternalSampler | None:
        """The attempt as this process knows it, if its documents have no other turn; then there is nothing to read. After the
        attempt's end: a turn that another process writes later is never asked."""
        sampler, session, shared = self._sampler, self._current, record.session
        self._current = None  # it is played once; what comes after it is read
        if sampler is None or session is None or shared is None or shared.limit is not None or not sampler.answered_all:
            return None
        if await self._resources.store.sessions.has_turn(record.id, len(sampler.episode.dispatches)):
            return None
        session.note_session(shared)
        return sampler

    async def _whole(self, record: Record) -> ExternalSampler:
        """The attempt after the last of its requests has ended, or after `ENDING_S`."""
        until = time.monotonic() + ENDING_S
        while True:
            sampler, _ = await self._resumed(record)
            if not sampler.open_turns or time.monotonic() > until:
                return sampler
            await asyncio.sleep(0.2)


def is_given_back(session: AgentSession) -> bool:
    return session.end is not None and session.end.given_back
