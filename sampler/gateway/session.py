"""One attempt's requests: finds the thread that each continues, asks the sampler, and remembers what the agent did.

Promises: a request either gets a sampled reply or an error, and an error of the infrastructure stays with the session, so that
an agent that goes on without that reply is not scored. A request whose client leaves is cancelled, and its thread is as it
was before. The session ends with its attempt, and its key with it.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from sampler.core.errors import EngineError, EngineRefused, KeyRefused
from sampler.core.rendering.ahead import num_tokens
from sampler.core.rendering.reply_message import PREFIX, prefix_of
from sampler.core.rendering.template import PromptTooLong
from sampler.core.rendering.turn import ReplyOptions
from sampler.gateway.chat_replies import client_reply, forms_of, sampled_tokens
from sampler.gateway.crash import RequestFates, is_cancelled
from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    GatewayError,
    Problem,
    RetryRequest,
    SentRequest,
    checked_score,
)
from sampler.gateway.matching import Match, Matcher, ThreadMatch
from sampler.gateway.output_format import FormatRule, grammar_of, with_format
from sampler.gateway.received_images import sees, with_references
from sampler.gateway.resuming import REFUSED, ThreadMemory, met_limit
from sampler.gateway.streaming import ReplyStream, reply_stream
from sampler.gateway.tool_results import CalledTools
from sampler.gateway.unused import admitted, count, unused_names
from shared.documents.agent_sessions import AgentSession, ClientRequest
from shared.documents.states import DispatchStatus, Termination
from shared.episodes.state import EpisodeState
from shared.errors import ConfigError, TandemError

if TYPE_CHECKING:
    from sampler.core.episode.sampler import AsyncSampler, Turn

SamplingParameters = Literal["override", "refuse"]
MAX_AT_ONCE = 64  # requests of one attempt
MAX_REPLAYED = 256  # replies kept for repeated requests
SENT_AGAIN = "the client has sent this request again meanwhile, and gets the reply to that"
FIRST = SentRequest()


# 25 methods: one conversation's requests, which share what was asked before
@dataclass
class AttemptSession:
    """`sampler` plays the attempt. `failure`: what ended it; `limit`: a limit that a request met."""

    sampler: "AsyncSampler"
    parameters: SamplingParameters = "override"
    head_lines: int = 0
    output_format: FormatRule = "prompt"
    failure: BaseException | None = None
    limit: Termination | None = None
    score: float | None = None
    fates: RequestFates = field(default_factory=RequestFates)
    last_turn: "Turn | None" = None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.max_tokens = self.sampler.config.budget.max_tokens
        self.sees = sees(self.sampler.resources, self.models)  # one of the models reads images
        self._matcher = Matcher(self.head_lines)
        self._tools = CalledTools(self.sampler)
        self._turns: dict[str, Turn] = {}  # by dispatch
        self._replayed: dict[str, ChatReply] = {}  # by the request's identity
        self._elsewhere: dict[str, ThreadMatch] = {}  # by the identity of a request that another process asks for
        self._sent_first: Counter[str] = Counter()  # by identity: agents may ask for several samples at once
        self._repeated: set[str] = set()  # identities of requests that were sent again, to any process
        self._running: dict[asyncio.Task[ChatReply], str] = {}  # the identity of its request
        self._given_up: set[asyncio.Task[ChatReply]] = set()  # of these, those that were sent again
        self._ended = False

    @property
    def models(self) -> list[str]:
        return [self.sampler.config.policy, *self.sampler.config.other_policies]

    @property
    def has_open_request(self) -> bool:
        return bool(self._running)

    def stream_of(self, request: ChatRequest) -> ReplyStream | None:
        """What `chat` tells of the reply while it is sampled; None if the client asked for no stream."""
        return reply_stream(request, self.sampler.config.prompt.tool_call_parser)

    async def referenced(self, request: ChatRequest) -> ChatRequest:
        """With references in place of images, which are stored. Raises GatewayError."""
        self._require_open(request)
        try:
            return await with_references(request, self.sampler.resources)
        except TandemError as exc:
            self.failure = self.failure or exc
            raise GatewayError(Problem.FAILED, str(exc)) from exc

    async def chat(
        self, request: ChatRequest, sent: SentRequest = FIRST, stream: ReplyStream | None = None
    ) -> ChatReply:
        """The reply, or the earlier reply to the same request if the client says that it sends it again.

        Raises GatewayError. Cancelling the caller cancels the request at the engine.
        """
        self.sampler.episode.final_score = None
        with self.fates.request():
            return await self._answered(request, sent, stream)

    async def _answered(self, request: ChatRequest, sent: SentRequest, stream: ReplyStream | None) -> ChatReply:
        self._sent_first[sent.identity] += not sent.is_again
        if sent.is_again:
            if self._sent_first[sent.identity] <= 1:  # else it is not known which of them is sent again
                await self._give_up(sent.identity)
            if sent.identity in self._replayed:
                self.counts["replayed"] += 1
                return self._with_logprobs(request, replace(self._replayed[sent.identity], is_replayed=True))
        overridden = self._require_possible(request)
        if sent.is_again and (waiting := self._elsewhere.pop(sent.identity, None)) is not None:
            waiting.busy = False  # the process that had it is asked no more; else this may be a second sample
        task = asyncio.create_task(
            self._reply(request, sent, overridden, stream), name=f"agent request {self.sampler.claim.record_id}"
        )
        self._running[task] = sent.identity
        task.add_done_callback(self._note_end)
        try:
            return self._with_logprobs(request, await task)
        except asyncio.CancelledError:
            if self._ended and task.cancelled():  # by `close`, not by the client
                raise GatewayError(Problem.NO_KEY, "the attempt that this key belongs to has ended") from None
            task.cancel()
            await asyncio.wait([task])
            self.counts["cancelled"] += 1
            if task in self._given_up and not is_cancelled():
                raise RetryRequest(SENT_AGAIN) from None
            raise
        finally:
            self._given_up.discard(task)

    def was_repeated(self, identity: str) -> bool:
        """Whether another process was asked for this request by a client that sent it again."""
        return identity in self._repeated

    def unused(self, request: ChatRequest) -> list[str]:
        """Paths of what of the request changes nothing."""
        return unused_names(request, self.sampler.config, self.sampler.task)

    async def count_tokens(self, request: ChatRequest) -> int:
        """The prompt's length as the chat template renders it. Raises GatewayError."""
        self._require_model(request)
        template = self.sampler.resources.policy_client(request.model).template
        request = with_format(request, self.output_format, template)
        try:
            return await num_tokens(template, request.messages, request.tools, request.prefix)
        except PromptTooLong as exc:
            raise GatewayError(Problem.TOO_LONG, f"prompt is too long: {exc}") from exc
        except ConfigError as exc:
            raise GatewayError(Problem.INVALID, str(exc)) from exc

    async def give_score(self, score: float, turn: str | None = None) -> None:
        """The score of the attempt, or of the turn with this reply id. Raises GatewayError."""
        if self._ended:
            raise GatewayError(Problem.NO_KEY, "the attempt has ended")
        score = checked_score(score)
        if turn is None:
            self.score = score
            self.fates.is_score_final = True
            self.sampler.episode.final_score = None if self.failure is not None else self.score
        elif turn in self._turns:
            self.sampler.score_turn(self._turns[turn], score)
        else:
            raise GatewayError(Problem.INVALID, f"turn {turn!r} is no reply of this attempt")

    async def note_refused(self, error: GatewayError) -> None:
        self.limit = self.limit or (Termination.LENGTH_LIMIT if error.is_limit else None)
        self.fates.refused(str(error))

    def resume(self, state: EpisodeState, turns: "Sequence[Turn]") -> None:
        """Continue an attempt: `turns` are those that the sampler resumed."""
        answered = {turn.dispatch_id: turn for turn in turns}
        memory = ThreadMemory(self._matcher)
        for at in state.turns:
            dispatch, turn = at.dispatch, answered.get(at.dispatch.id)
            client = dispatch.client or ClientRequest(identity="", cause="")
            if client.again:
                self._repeated.add(client.identity)
            if turn is not None:
                prefix = prefix_of(dispatch.messages)
                reply = client_reply(at.policy, turn, dispatch.sampling_params.get("stop", ()), prefix=prefix)
                self.fates.answered()
                memory.answered(at, turn.message, forms_of(turn, reply, prefix))
                self._keep(client.identity, turn, reply)
                self._tools.resume(dispatch, turn)
                self.counts[client.cause] += 1
                count(self.counts, client.overridden)
            elif at.is_open:
                self._elsewhere[client.identity] = memory.waiting(at)
            elif dispatch.status is DispatchStatus.CANCELLED:
                self.counts["cancelled"] += 1
                self.fates.refused("its client left it")
            elif not state.was_retried(at):
                self.failure = self.failure or EngineError(dispatch.error or "a request failed")
        self.limit = met_limit(state)
        if self.limit is REFUSED:
            self.limit = None
            self.fates.refused("it was refused")
        self.note_session(state.record.session)

    def note_session(self, shared: AgentSession | None) -> None:
        """What any process was told of the attempt, apart from its requests."""
        if shared is not None:
            self.score = shared.score
            if shared.replayed:
                self.counts["replayed"] = sum(shared.replayed.values())

    def answered_all(self, turns: int) -> bool:
        """Whether so many requests were answered, and none was refused by a limit, left by its client or failed."""
        return (
            len(self._turns) == turns
            and not (self._running or self._elsewhere or self.failure or self.limit)
            and not self.counts["cancelled"]
        )

    async def close(self) -> None:
        """No request from now on; those that run are cancelled."""
        self._ended = True
        running = list(self._running)
        self.fates.end(len(running))
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # ------------------------------------------------------------------ inside

    def _require_possible(self, request: ChatRequest) -> list[str]:
        """What of the request is unused. Raises GatewayError."""
        sampler = self.sampler
        self._require_open(request)
        if len(self._running) >= MAX_AT_ONCE:
            raise GatewayError(
                Problem.TOO_MANY, f"{MAX_AT_ONCE} requests of this attempt are running; send fewer at once"
            )
        most = sampler.task.payload.max_turns or sampler.config.budget.max_turns
        if len(self._turns) + len(self._running) >= most:
            self.limit = self.limit or Termination.TURNS_LIMIT
            raise GatewayError(Problem.LIMIT, f"the episode has had its {most} replies (max_turns)")
        return admitted(self.unused(request), refused=self.parameters == "refuse")

    def _require_open(self, request: ChatRequest) -> None:
        if self._ended:
            raise GatewayError(Problem.NO_KEY, "the attempt that this key belongs to has ended")
        if self.failure is not None:
            raise GatewayError(Problem.FAILED, f"the attempt has failed: {self.failure}")
        self._require_model(request)

    def _require_model(self, request: ChatRequest) -> None:
        if request.model not in self.models:
            raise GatewayError(
                Problem.NO_MODEL, f"model {request.model!r} is no policy; expected one of: {', '.join(self.models)}"
            )

    async def _give_up(self, identity: str) -> None:
        """Cancel the request that a client sends again: it does not wait for that any more, and its thread is free."""
        earlier = [task for task, name in self._running.items() if name == identity]
        self._given_up.update(earlier)
        for task in earlier:
            task.cancel()
        if earlier:
            await asyncio.wait(earlier)

    def _note_end(self, task: "asyncio.Task[ChatReply]") -> None:
        """An error that is no answer to the request, such as a bug, ends the attempt."""
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GatewayError):
            self.failure = self.failure or error

    async def _reply(
        self, request: ChatRequest, sent: SentRequest, overridden: list[str], stream: ReplyStream | None
    ) -> ChatReply:
        template = self.sampler.resources.policy_client(request.model).template
        request = with_format(request, self.output_format, template)
        match = self._matcher.match(request.model, request.messages, request.tools)
        client = ClientRequest(
            identity=sent.identity,
            cause=match.cause.value,
            overridden=overridden,
            again=sent.is_again,
            without_calls=bool(request.tools) and not request.may_call,
        )
        self.sampler.expect(client, policy=request.model, thread=match.thread.name)
        turn = None
        try:
            self._tools.answered_by(request)
            turn = await self._sampled(request, match, stream)
        finally:
            if turn is None:
                self._matcher.failed(match)
        self.counts[match.cause.value] += 1
        count(self.counts, overridden)
        streamed, prefix = "" if stream is None else stream.content, request.prefix
        reply = client_reply(request.model, turn, request.stop, streamed, prefix)
        self._matcher.replied(match, turn.message, forms_of(turn, reply, prefix))
        self._tools.note_calls(turn)
        self._keep(sent.identity, turn, reply)
        return reply

    def _with_logprobs(self, request: ChatRequest, reply: ChatReply) -> ChatReply:
        if not request.wants_logprobs:
            return reply
        template = self.sampler.resources.policy_client(reply.model).template
        return replace(reply, tokens=sampled_tokens(self._turns[reply.id], template))

    def _keep(self, identity: str, turn: "Turn", reply: ChatReply) -> None:
        self._turns[reply.id] = self.last_turn = turn
        if len(self._replayed) >= MAX_REPLAYED:
            del self._replayed[next(iter(self._replayed))]
        self._replayed[identity] = reply

    async def _sampled(self, request: ChatRequest, match: Match, stream: ReplyStream | None) -> "Turn":
        try:
            begun = [{"role": "assistant", "content": request.prefix, PREFIX: True}] if request.prefix else []
            turn = await self.sampler.create_chat_completions(
                [*match.messages, *begun],
                tools=request.tools or None,
                policy=request.model,
                thread=match.thread.name,
                max_new_tokens=request.max_tokens,
                listener=None if stream is None else stream.hear,
                options=ReplyOptions(request.stop, request.may_call, grammar_of(request, self.output_format)),
            )
        except ConfigError as exc:  # the template refuses these messages
            raise GatewayError(Problem.INVALID, str(exc)) from exc
        except TandemError as exc:
            self.failure = self.failure or exc
            refused = isinstance(exc, EngineRefused) and not isinstance(exc, KeyRefused)  # again, if asked again
            raise GatewayError(Problem.INVALID if refused else Problem.FAILED, str(exc)) from exc
        if turn is None:
            self.limit = Termination.LENGTH_LIMIT
            most = min([self.sampler.config.budget.max_tokens, *self.sampler.resources.pool.contexts.known.values()])
            raise GatewayError(
                Problem.TOO_LONG, f"prompt is too long: this model's maximum context length is {most} tokens"
            )
        self.limit = None
        return turn
