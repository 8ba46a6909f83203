"""One attempt's requests: finds the thread that each continues, asks the sampler, and remembers what the agent did.

Promises: a request either gets a sampled reply or an error, and an error of the infrastructure stays with the session, so that
an agent that goes on without that reply is not scored. A request whose client leaves is cancelled, and its thread is as it
was before. The session ends with its attempt, and its key with it.
"""

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sampler.gateway.exchange import (
    ChatReply,
    ChatRequest,
    GatewayError,
    Problem,
    ReceivedMessage,
    RepliedCall,
    reply_id,
)
from sampler.gateway.matching import Match, Matcher
from sampler.gateway.streaming import ReplyStream, told_parts
from sampler.gateway.tool_results import CalledTools
from sampler.parsers import OPENINGS
from shared.documents.states import Termination
from shared.errors import ConfigError, TandemError

if TYPE_CHECKING:
    from sampler.sampler import AsyncSampler, Turn

SamplingParameters = Literal["override", "refuse"]
MAX_AT_ONCE = 64  # requests of one attempt
MAX_REPLAYED = 256  # replies kept for repeated requests


@dataclass
class AttemptSession:
    """`sampler` plays the attempt. `failure`: what ended it; `limit`: a limit that a request met."""

    sampler: "AsyncSampler"
    parameters: SamplingParameters = "override"
    head_lines: int = 0
    failure: BaseException | None = None
    limit: Termination | None = None
    score: float | None = None
    last_turn: "Turn | None" = None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._matcher = Matcher(self.head_lines)
        self._tools = CalledTools(self.sampler)
        self._turns: dict[str, Turn] = {}  # by dispatch
        self._replayed: dict[str, ChatReply] = {}
        self._running: set[asyncio.Task[ChatReply]] = set()
        self._ended = False

    @property
    def models(self) -> list[str]:
        return [self.sampler.config.policy, *self.sampler.config.other_policies]

    def stream_of(self, request: ChatRequest) -> ReplyStream | None:
        """What `chat` tells of the reply while it is sampled; None if the client asked for no stream."""
        return ReplyStream(request.model, OPENINGS[self.sampler.config.tool_call_parser]) if request.stream else None

    async def chat(
        self, request: ChatRequest, repeated: str | None = None, stream: ReplyStream | None = None
    ) -> ChatReply:
        """The reply. `repeated`: the identity of a request that the client says it sends again, if it is known.

        Raises GatewayError. Cancelling the caller cancels the request at the engine.
        """
        if repeated is not None and repeated in self._replayed:
            self.counts["replayed"] += 1
            return self._replayed[repeated]
        self._require_possible(request)
        task = asyncio.create_task(self._reply(request, stream), name=f"agent request {self.sampler.claim.record_id}")
        self._running.add(task)
        task.add_done_callback(self._asked)
        try:
            return await task
        except asyncio.CancelledError:
            if self._ended and task.cancelled():  # by `close`, not by the client
                raise GatewayError(Problem.NO_KEY, "the attempt that this key belongs to has ended") from None
            task.cancel()
            await asyncio.wait([task])
            self.counts["cancelled"] += 1
            raise

    def remember(self, identity: str, reply: ChatReply) -> None:
        """Keep a reply for a client that sends the same request again."""
        if len(self._replayed) >= MAX_REPLAYED:
            del self._replayed[next(iter(self._replayed))]
        self._replayed[identity] = reply

    def count_tokens(self, request: ChatRequest) -> int:
        """The prompt's length as the chat template renders it. Raises GatewayError."""
        self._require_model(request)
        template = self.sampler.resources.policy_client(request.model).template
        try:
            return len(template.render_ids(request.messages, request.tools, add_generation_prompt=True))
        except ConfigError as exc:
            raise GatewayError(Problem.INVALID, str(exc)) from exc

    def give_score(self, score: float, turn: str | None = None) -> None:
        """The score of the attempt, or of the turn with this reply id. Raises GatewayError."""
        if self._ended:
            raise GatewayError(Problem.NO_KEY, "the attempt has ended")
        if not math.isfinite(score):
            raise GatewayError(Problem.INVALID, f"score is {score}; expected a finite number")
        if turn is None:
            self.score = float(score)
        elif turn in self._turns:
            self.sampler.score_turn(self._turns[turn], score)
        else:
            raise GatewayError(Problem.INVALID, f"turn {turn!r} is no reply of this attempt")

    async def close(self) -> None:
        """No request from now on; those that run are cancelled."""
        self._ended = True
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # ------------------------------------------------------------------ inside

    def _require_possible(self, request: ChatRequest) -> None:
        sampler = self.sampler
        if self._ended:
            raise GatewayError(Problem.NO_KEY, "the attempt that this key belongs to has ended")
        if self.failure is not None:
            raise GatewayError(Problem.FAILED, f"the attempt has failed: {self.failure}")
        self._require_model(request)
        if len(self._running) >= MAX_AT_ONCE:
            raise GatewayError(
                Problem.TOO_MANY, f"{MAX_AT_ONCE} requests of this attempt are running; send fewer at once"
            )
        most = sampler.task.payload.max_turns or sampler.config.max_turns
        if len(self._turns) + len(self._running) >= most:
            self.limit = self.limit or Termination.TURNS_LIMIT
            raise GatewayError(Problem.LIMIT, f"the episode has had its {most} replies (max_turns)")
        ours = sampler.config.temperature
        changed = {name for name, value in request.sampling.items() if (name, value) != ("temperature", ours)}
        if changed and self.parameters == "refuse":
            raise GatewayError(
                Problem.INVALID,
                f"{', '.join(sorted(changed))}: refused, because trained replies are sampled from the policy itself; leave "
                "them out, or set agent_parameters to override",
            )
        self.counts.update(f"overridden_{name}" for name in changed)

    def _require_model(self, request: ChatRequest) -> None:
        if request.model not in self.models:
            raise GatewayError(
                Problem.NO_MODEL, f"model {request.model!r} is no policy; expected one of: {', '.join(self.models)}"
            )

    def _asked(self, task: "asyncio.Task[ChatReply]") -> None:
        """An error that is no answer to the request, such as a bug, ends the attempt."""
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GatewayError):
            self.failure = self.failure or error

    async def _reply(self, request: ChatRequest, stream: ReplyStream | None) -> ChatReply:
        match = self._matcher.match(request.model, request.messages, request.tools)
        turn = None
        try:
            self._tools.answered_by(request)
            turn = await self._sampled(request, match, stream)
        finally:
            if turn is None:
                self._matcher.failed(match)
        self.counts[match.cause.value] += 1
        reply = self._told(request, turn, "" if stream is None else stream.content)
        self._matcher.replied(match, turn.message, _forms(turn, reply))
        self._tools.asked_for(turn)
        self._turns[reply.id] = self.last_turn = turn
        return reply

    async def _sampled(self, request: ChatRequest, match: Match, stream: ReplyStream | None) -> "Turn":
        try:
            turn = await self.sampler.create_chat_completions(
                match.messages,
                tools=request.tools or None,
                policy=request.model,
                thread=match.thread.name,
                max_new_tokens=request.max_tokens,
                listener=None if stream is None else stream.hear,
            )
        except ConfigError as exc:  # the template refuses these messages
            raise GatewayError(Problem.INVALID, str(exc)) from exc
        except TandemError as exc:
            self.failure = self.failure or exc
            raise GatewayError(Problem.FAILED, str(exc)) from exc
        if turn is None:
            self.limit = Termination.LENGTH_LIMIT
            most = self.sampler.config.max_tokens
            raise GatewayError(
                Problem.TOO_LONG, f"prompt is too long: this model's maximum context length is {most} tokens"
            )
        self.limit = None
        return turn

    def _told(self, request: ChatRequest, turn: "Turn", streamed: str) -> ChatReply:
        parsed, usage = turn.parsed, turn.usage
        reasoning, content = told_parts(turn.text, parsed, streamed)
        return ChatReply(
            id=reply_id(turn.dispatch_id),
            model=request.model,
            content=content,
            reasoning=reasoning,
            calls=[RepliedCall(call.id, call.name, call.arguments) for call in parsed.tool_calls],
            is_cut=turn.finish_reason == "length",
            prompt_tokens=usage.get("prompt", 0),
            cached_tokens=usage.get("cached", 0),
            completion_tokens=usage.get("completion", 0),
            created=int(time.time()),
        )


def _forms(turn: "Turn", reply: ChatReply) -> list[ReceivedMessage]:
    """What the client was told, and the text as sampled, which some clients keep instead."""
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in reply.calls]
    told = {"role": "assistant", "content": reply.content, "tool_calls": calls}
    return [told, {"role": "assistant", "content": turn.text}]
