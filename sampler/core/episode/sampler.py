"""`AsyncSampler`: the public base class for playing episodes. It keeps a token-exact record of each one.

    class Greeter(AsyncSampler):
        async def run(self) -> Termination:
            turn = await self.create_chat_completions([{"role": "user", "content": self.task.payload.query}])
            return self.ended_by(turn) or Termination.ANSWERED

    python -m sampler --sampler my.module:Greeter ...

`create_chat_completions` takes only the messages that are new in a thread. It builds the prompt (previous ids + what the
template adds), sends it to an engine, and writes request and reply to the database. Threads may ask at the same time. `run`
plays and `evaluate_record` scores; the service handles leases, retries, settlement and shutdown. Do not catch infrastructure
errors (`EngineError`, `ToolFailure`, `AgentFailed`, `ScorerFailed`): the service retries the slot, and the error never becomes
a reward.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from sampler.core.engines.pool.turn_sources import draw
from sampler.core.episode.clock import EpisodeClock
from sampler.core.episode.dispatch import answer_values, check_distribution, new_dispatch, sampling_params
from sampler.core.episode.in_flight import InFlight
from sampler.core.episode.journal import Journal, Thread
from sampler.core.episode.log import EpisodeLog
from sampler.core.episode.opening import opening_messages
from sampler.core.episode.resources import Resources
from sampler.core.episode.scoring import score_text
from sampler.core.episode.threads import EpisodeThreads
from sampler.core.errors import ContextTooLong
from sampler.core.rendering.ahead import encode_ahead, length_of_next_prompt, next_prompt
from sampler.core.rendering.context import Prompt
from sampler.core.rendering.images import placeholder_of
from sampler.core.rendering.recorded import Parent
from sampler.core.rendering.reply_message import Message
from sampler.core.rendering.template import PromptTooLong, ToolSchema
from sampler.core.rendering.turn import NO_OPTIONS, Asking, Listener, ReplyOptions, Turn, listener_for
from sampler.core.rendering.view import View
from sampler.core.scorers import Score
from sampler.core.scorers.answers import extract_answer
from sampler.core.scorers.weighted import scorers_of
from sampler.core.settings.core_config import CoreConfig
from shared.documents import Claim, DispatchedSamplingTask, Task, ToolCallResult
from shared.documents.agent_sessions import ClientRequest
from shared.documents.scoring import WeightedScorer
from shared.documents.states import DispatchStatus, Termination
from shared.errors import ConfigError
from shared.held_values import held_documents, held_messages
from shared.names import TRAIN_SPLIT
from shared.scores import EXPECTED, is_usable, real_number, usable_score
from shared.user_code.payload import own_payload_problems

__all__ = ["AsyncSampler", "Turn"]

PayloadT = TypeVar("PayloadT", bound=BaseModel)
METRIC_NAME = re.compile(r"[A-Za-z0-9_-]+")
MAX_THREAD_CHARS = 200
MOST_PROMPT_IMAGES = 256  # of one prompt; more are as if the context were full


# 29 methods: the class that users extend: its methods are the interface (docs/reference/api.md)
class AsyncSampler(ABC):
    """Plays one episode: the slot that `claim` holds. One object per episode.

    Override `run`, and where you want `evaluate_record`, `opening_messages`, `scorer_name`, `uses_tools`. `finish_turn` is the
    service's, and what begins with `_` is internal; the rest is yours to call (docs/reference/api.md).
    """

    uses_tools: ClassVar[bool] = False  # True: `run` opens a session with the tools that the task names
    _goes_on_elsewhere: ClassVar[bool] = False  # True: another process ends a cancelled episode, from its documents

    def __init__(self, resources: Resources, claim: Claim) -> None:
        self.resources = resources
        self.config = resources.config
        self.claim, self.episode = claim, EpisodeLog()
        self._threads = EpisodeThreads(resources, claim.task.policy)
        self._journal = self.new_journal()
        self._in_flight, self._clock = InFlight(), EpisodeClock()

    @classmethod
    def lacks(cls, config: CoreConfig) -> str | None:
        """The setting without which the class cannot play, in words; None: it can. Tasks that name it are then left to others."""
        return None

    async def require_engines(self) -> None:  # noqa: B027  # most classes need none
        """Before the episode begins. Raises VersionUnavailable if no engine serves weights that it needs, besides the newest."""

    @classmethod
    def require_forks(cls) -> None:
        """Raises ConfigError for a class whose `run` does not go on from `TaskPayload.fork`."""
        raise ConfigError(f"{cls.__qualname__} cannot go on from a turn; only the standard sampler (mcp) can be forked")

    @property
    def task(self) -> Task:
        return self.claim.task

    @abstractmethod
    async def run(self) -> Termination:
        """Play the episode to its end and return how it ended."""

    async def evaluate_record(self) -> Score:
        """Score the episode: apply the task's scorer to the answer in the last reply. Raise ScoreComesLater where the score
        comes as feedback."""
        last = self.episode.last_scored
        return await score_text(self, last, extract_answer(last.answer_text, self.task.payload.answer_schema))

    def opening_messages(self) -> list[Message]:
        """The system prompt, including the answer's form (`answer_instruction`), and the task's query."""
        return opening_messages(
            self.task.payload,
            scorers=[one.name for one in self.scorers],
            system_prompt=self.config.prompt.system_prompt,
            answer_instruction=self.config.prompt.answer_instruction,
        )

    @property
    def scorer_name(self) -> str:
        """The first scorer that the task names, or the default one. An override is the only scorer."""
        return self._scorers[0].name

    @property
    def scorers(self) -> tuple[WeightedScorer, ...]:
        """The scorers of the episode: those that the task names, or the settings; an own `scorer_name` alone."""
        is_own = type(self).scorer_name is not AsyncSampler.scorer_name
        return (WeightedScorer(name=self.scorer_name),) if is_own else self._scorers

    @property
    def _scorers(self) -> tuple[WeightedScorer, ...]:
        config, judge = self.config, self.resources.agents.judge
        return scorers_of(self.task.payload, config.scoring.default_scorer, config.scoring.default_scorers, judge)

    @property
    def conversation(self) -> tuple[Mapping[str, Any], ...]:
        """What the task's policy has received and written so far, thread by thread (`sampler/core/rendering/transcript.py`)."""
        return self._threads.messages

    # ------------------------------------------------------------------ what `run` uses

    # 8 parameters: what users may say of one request; all but the messages are optional
    async def create_chat_completions(
        self,
        new_messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        restart: bool = False,
        policy: str | None = None,
        thread: str | None = None,
        max_new_tokens: int | None = None,
        listener: Listener | None = None,
        options: ReplyOptions = NO_OPTIONS,
    ) -> Turn | None:
        """Return the policy's next reply to the messages that are new since its last one in the thread.

        Returns None when the context has no room for another token (`Termination.LENGTH_LIMIT`). Only the `tools` of a thread's
        first call count. `restart`: the messages are the whole history from now on, as rewritten by a context policy. Replies
        of this episode among them, and among a thread's first messages (`Turn.message`, a copy of it, or `Turn.text` as
        content), keep their sampled ids. `policy`: one of `other_policies` instead of the task's own. `thread`: the name of a
        conversation of its own; threads and policies may ask at the same time. `max_new_tokens`: a limit below the setting's.
        `listener` hears the reply's text while it is sampled; after an engine failed, the text may begin anew.

        After an error or a cancellation the thread is as it was before the call; only its last turn is written by then.
        Raises EngineError, and ConfigError for messages that were already sent (`rendering/new_messages.py`) and for a
        thread that waits for a reply.
        """
        with self._in_flight.asking(key := self._key(policy, thread)):
            view = self._threads.view(key, tools)
            before, turn = view.fork(sharing=True), None
            try:
                asking = Asking(max_new_tokens or self.config.budget.max_new_tokens, restart, listener, options)
                messages = held_messages(await self.resources.images.of_request(new_messages))
                with suppress(ContextTooLong):  # the prompt fills an engine's context, which the pool has logged
                    turn = await self._next_turn(view, messages, asking)
            finally:
                if turn is None:
                    self._threads.restore(key, before)
            return turn

    def prompt_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        restart: bool = False,
        policy: str | None = None,
        thread: str | None = None,
    ) -> int:
        """Length of the prompt that `create_chat_completions` would send for these messages; of one that is far beyond
        `max_tokens` a lower bound. Sends and changes nothing. Raises ConfigError as that does."""
        self._in_flight.require_free(key := self._key(policy, thread))
        return length_of_next_prompt(self._threads.copy_of(key, tools), held_messages(messages), restart=restart)

    async def encode_ahead(
        self, messages: Sequence[Message], *, restart: bool = False, thread: str | None = None
    ) -> None:
        """What is long, for `prompt_tokens`, while other episodes go on. Raises ConfigError."""
        with suppress(PromptTooLong):
            await encode_ahead(
                self._threads.copy_of(self._key(None, thread), None), held_messages(messages), restart=restart
            )

    def expect(self, client: ClientRequest, *, policy: str, thread: str) -> None:
        """The thread's next request answers this one of an agent: it is stored with it."""
        self._journal.expect(self._key(policy, thread), client)

    def mark(self, status: DispatchStatus, *, turn: Turn | None = None) -> None:
        """Set the status of `turn`, or of the last reply. It is written together with its tool calls."""
        self._journal.amend(self._dispatch_of(turn), status=status)

    def add_tool_calls(
        self,
        tool_calls: Sequence[ToolCallResult],
        *,
        status: DispatchStatus | None = None,
        turn: Turn | None = None,
    ) -> None:
        """Attach tool results to `turn`, or to the last reply; in an episode with threads `turn` is required. They are
        written with the thread's next request, or at the end of the episode; after that raises ValueError."""
        held = held_documents(tool_calls)
        update = {"tool_calls": held, **({} if status is None else {"status": status})}
        dispatch = self._dispatch_of(turn)
        self._journal.amend(dispatch, **update)
        self.episode.tool_calls[dispatch] = tuple(held)

    def score_turn(self, turn: Turn, score: float) -> None:
        """Assign `score` to `turn`, as a part of the episode's score. A second call replaces the first.

        Call it from `run` or `evaluate_record`. The episode's score is the total: the last turn receives the remainder.
        Only per-turn advantages use it (`reward_to_go`, `gigpo`). Raises ValueError for a turn of another episode
        and for a score that the trainer cannot use.
        """
        if turn.dispatch_id not in self.episode.dispatches or not is_usable(score):
            raise ValueError(
                f"score {score} of turn {turn.dispatch_id}: expected {EXPECTED}, for a turn of this episode"
            )
        value = usable_score(score)
        self.episode.turn_scores[turn.dispatch_id] = value
        if self._journal.is_unwritten(turn.dispatch_id):
            self._journal.amend(turn.dispatch_id, score=value)

    def add_metric(self, name: str, value: float) -> None:
        """Record a number about this episode; a second call replaces the first. `tandem show` prints it with the record,
        `tandem status` its mean by source, and the trainer logs `metric/NAME` and `metric_by_source/SOURCE/NAME`. Raises
        ValueError.
        """
        number = real_number(value)
        if not METRIC_NAME.fullmatch(name) or number is None:
            raise ValueError(f"metric {name!r} is {value}: expected letters, digits, - and _, and a finite number")
        self.episode.metrics[name] = number

    def own_payload(self, model: type[PayloadT]) -> PayloadT:
        """The task's `metadata` validated as your `model`. Raises ConfigError naming the task and the field.

        `tandem tasks import --payload_model` runs the same check before it stores tasks.
        """
        for problem in own_payload_problems(model, self.task.payload.metadata):
            raise ConfigError(f"task {self.task.id}: {problem}")
        return model.model_validate(self.task.payload.metadata)

    async def finish_turn(
        self, unanswered: DispatchStatus = DispatchStatus.FAILED, *, failed: bool = False, last: bool = False
    ) -> None:
        """Write replies and tool results that are not written yet. `unanswered`: status of requests without a reply.

        Raises OwnCodeFailed if requests wait for a reply, and DoesNotFit; with `failed`, cancels such requests, and stores the
        error in place of contents that do not fit. With `failed` or `last` nothing is asked afterwards.
        """
        if failed:
            await self._in_flight.stop()
        else:
            self._in_flight.require_none()
        if last:
            self._in_flight.end()
        await self._journal.close(unanswered, failed=failed)

    def ended_by(self, turn: Turn | None) -> Termination | None:
        """The termination that follows from the reply alone: no room for one, cut off by the token budget, or not to be read as
        it is in a later prompt."""
        if turn is not None and turn.has_image_token:
            return Termination.IMAGE_TOKEN
        if turn is None or turn.finish_reason == "length":
            return Termination.LENGTH_LIMIT
        return None

    def new_journal(self) -> Journal:
        """Of the episode's requests; the gateway's has more to write."""
        return Journal(self.resources.store.records)

    def _key(self, policy: str | None, thread: str | None) -> Thread:
        if thread is not None and not (isinstance(thread, str) and 0 < len(thread) <= MAX_THREAD_CHARS):
            raise ValueError(f"thread is {thread!r}; expected a name of at most {MAX_THREAD_CHARS} characters")
        return policy or self.task.policy, thread

    def _dispatch_of(self, turn: Turn | None) -> str:
        if turn is not None:
            return turn.dispatch_id
        if self._threads.has_threads:
            raise ValueError("the episode has threads: say which reply is meant, by turn=")
        return self._journal.newest()

    async def _next_turn(self, view: View, messages: Sequence[Message], asking: Asking) -> Turn | None:
        prompt = None if view.is_closed else await next_prompt(view, messages, restart=asking.restart)
        if prompt is None or len(view.context.images) > MOST_PROMPT_IMAGES:
            return None
        ids = view.context.ids
        of_engines = self.resources.policy_client(view.policy).pool.contexts.room(len(ids))
        room = min(asking.most, self.config.budget.max_new_tokens, self.config.budget.max_tokens - len(ids), of_engines)
        if room <= 0 or (view.is_opening and len(ids) > self.config.budget.max_prompt_tokens):
            return None
        await self.resources.store_tool_list(view.tools_hash, view.tools)
        async with AsyncExitStack() as answering:
            async with self._journal.numbering:
                limits = {"max_new_tokens": room} | asking.options.sampling_params
                parent, dispatch = self._new_request(view, prompt, messages, limits)
                await answering.enter_async_context(self._journal.answering(dispatch))
                await self._journal.open(dispatch, (view.policy, view.thread))
            return await self._ask(view, dispatch, parent, asking)

    def _new_request(
        self, view: View, prompt: Prompt, messages: Sequence[Message], limits: Mapping[str, Any]
    ) -> tuple[Parent, DispatchedSamplingTask]:
        """The request, with the next number of the episode, and its parent."""
        parent, cause = view.parent(prompt)
        turn = len(self.episode.dispatches)
        dispatch = new_dispatch(
            self.claim.record_id,
            turn,
            view,
            messages,
            parent,
            cause,
            while_open=self._in_flight.number((view.policy, view.thread), turn),
            params=sampling_params(self.config, self.task, view.context.format.end_ids) | dict(limits),
        )
        self.episode.dispatches.append(dispatch.id)
        self.resources.branch_causes[cause.value] += 1
        self.resources.parent_kinds[parent.kind.value] += 1
        return parent, dispatch

    async def _ask(self, view: View, dispatch: DispatchedSamplingTask, parent: Parent, asking: Asking) -> Turn:
        mixed = view.policy == self.config.policy and self.task.split == TRAIN_SPLIT
        client = self.resources.policy_client(view.policy)
        source = await draw(client.pool, self.resources.sources if mixed else ())
        token_listener = listener_for(asking.listener, dispatch.id, view)
        reply = await source.pool.generate(
            view.encoded_prompt(),
            dispatch.sampling_params,
            rid=dispatch.id,
            affinity=view.engine_of(source.name, parent),
            timeout_s=self.config.engines.engine_timeout_s,
            version=self.task.at_version if view.policy == self.task.policy else client.version,
            on_ids=token_listener,
            images=await self.resources.images.prompt_images(
                view.context.images, placeholder_of(view.context.template.images)
            ),
        )
        if self.task.split == TRAIN_SPLIT and source.policy is None and view.policy in self.config.trained_policies:
            check_distribution(reply, dispatch)
        generation = reply.generation
        view.affinity[source.name] = generation.url
        text = view.text_of(generation.output_ids)
        if token_listener is not None:
            token_listener.whole(text)
        options = {"restart": asking.restart, "may_call": asking.options.may_call}
        message = self._threads.replied(view, dispatch, parent, generation.output_ids, text, **options)
        values = answer_values(reply, source, message)
        self._journal.amend(dispatch.id, **values)
        self.episode.replied(dispatch.model_copy(update=values), self.task.policy)
        await self._journal.answered(dispatch.id)
        known = (view.thread, values["usage"], values["response"], view.is_closed)
        return Turn(dispatch.id, text, message.message, message.parsed, generation.finish_reason, *known)
