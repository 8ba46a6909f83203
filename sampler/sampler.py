"""`AsyncSampler`: the public base class for playing episodes. It keeps a token-exact record of each one.

    class Greeter(AsyncSampler):
        async def run(self) -> Termination:
            turn = await self.create_chat_completions([{"role": "user", "content": self.task.payload.query}])
            return self.ended_by(turn) or Termination.ANSWERED

    python -m sampler --sampler my.module:Greeter ...

`create_chat_completions` takes only the new messages. It builds the prompt (previous ids + what the template adds), sends it
to an engine, and writes request and reply to the database. `run` plays and `evaluate_record` scores; the service handles
leases, retries, settlement and shutdown. Do not catch infrastructure errors (`EngineError`, `ToolFailure`, `AgentFailed`,
`ScorerFailed`): the service retries the slot, and the error never becomes a reward.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from sampler.engine.pool.turn_sources import draw
from sampler.episode_log import EpisodeLog
from sampler.messages.opening import opening_messages
from sampler.messages.reply_message import Message, beyond_text, message_of, with_call_ids
from sampler.messages.transcript import Transcript
from sampler.parsers import ParsedReply
from sampler.rendering.template import ToolSchema
from sampler.rendering.view import View
from sampler.rendering.words import reply_words
from sampler.resources import Resources
from sampler.scorers import Score, ScoringRequest, default_scorer, score_answer
from sampler.scorers.answers import extract_answer
from shared.documents import Claim, DispatchedSamplingTask, SampledResponse, Task, ToolCallResult
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.states import DispatchStatus, Termination
from shared.errors import ConfigError, DoesNotFit
from shared.names import TRAIN_SPLIT
from shared.outside_text import MAX_ERROR_CHARS, clipped
from shared.user_code.payload import own_payload_problems

PayloadT = TypeVar("PayloadT", bound=BaseModel)
METRIC_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the model. `parsed.tool_calls`: the calls it made. `parsed.errors`: the calls that could not be parsed."""

    dispatch_id: str
    text: str
    message: Message
    parsed: ParsedReply
    finish_reason: str


class AsyncSampler(ABC):
    """Plays one episode: the slot that `claim` holds. One object per episode.

    Override `run`, and where you want `evaluate_record`, `opening_messages`, `scorer_name`, `uses_tools`. `finish_turn` is the
    service's, and what begins with `_` is internal; the rest is yours to call (docs/api.md).
    """

    uses_tools: ClassVar[bool] = False  # True: `run` opens a session with the tools that the task names

    def __init__(self, resources: Resources, claim: Claim) -> None:
        self.resources = resources
        self.config = resources.config
        self.claim = claim
        self.episode = EpisodeLog()
        self._views: dict[str, View] = {}  # by policy
        self._transcript = Transcript()
        self._unwritten: list[DispatchedSamplingTask] = []  # requests that ended; written together with the next one

    @property
    def task(self) -> Task:
        return self.claim.task

    @abstractmethod
    async def run(self) -> Termination:
        """Play the episode to its end and return how it ended."""

    async def evaluate_record(self) -> Score:
        """Score the episode: apply the task's scorer to the answer in the last reply."""
        payload, judge = self.task.payload, self.resources.agents.judge
        reply = self.episode.last_reply
        request = ScoringRequest(
            answer=extract_answer(reply, payload.answer_schema),
            accepted=payload.accepted,
            query=payload.query,
            reply=reply,
            payload=payload.model_dump(mode="json"),
            messages=self.conversation,
            judge=judge,
        )
        self.episode.answer = request.answer
        return await score_answer(self.scorer_name, request)

    def opening_messages(self) -> list[Message]:
        """The system prompt, including the answer's form (`answer_instruction`), and the task's query."""
        return opening_messages(
            self.task.payload,
            scorer=self.scorer_name,
            system_prompt=self.config.system_prompt,
            answer_instruction=self.config.answer_instruction,
        )

    @property
    def scorer_name(self) -> str:
        """The scorer that the task names, or the default scorer."""
        return self.task.payload.scorer or default_scorer(self.config.default_scorer, self.resources.agents.judge)

    @property
    def conversation(self) -> tuple[Mapping[str, Any], ...]:
        """The messages that the task's policy has received and written so far (`sampler/messages/transcript.py`)."""
        return self._transcript.messages()

    # ------------------------------------------------------------------ what `run` uses

    async def create_chat_completions(
        self,
        new_messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        restart: bool = False,
        policy: str | None = None,
    ) -> Turn | None:
        """Return the policy's next reply to the messages that are new since its last one.

        Returns None when the context has no room for another token (`Termination.LENGTH_LIMIT`). Only the first call's
        `tools` count. `restart`: the messages are the whole history from now on, as rewritten by a context policy. Replies of
        this episode among them (`Turn.message`, a copy of it, or `Turn.text` as content) keep their sampled ids. `policy`:
        one of `other_policies` instead of the task's own; each has its own view, and they take turns one at a time. Raises
        EngineError, and ConfigError for messages that were already sent (`sampler/rendering/new_messages.py`).
        """
        view = self._view(policy or self.task.policy, tools)
        dispatch, prompt = self._next_dispatch(view, new_messages, restart)
        room = min(self.config.max_new_tokens, self.config.max_tokens - len(prompt))
        if room <= 0 or (view.last_dispatch is None and len(prompt) > self.config.max_prompt_tokens):
            return None
        await self.resources.keep_tools(view.tools_hash, view.tools)
        params = {**dispatch.sampling_params, "max_new_tokens": room}
        dispatch = dispatch.model_copy(update={"status": DispatchStatus.RUNNING, "sampling_params": params})
        if view.policy == self.task.policy:
            self._transcript.told(new_messages, restart=restart)
        answered = list(self._unwritten)
        self.episode.dispatches.append(dispatch.id)
        view.last_dispatch = dispatch.id
        self.resources.branch_causes[dispatch.branch_cause.value] += 1
        self._unwritten.append(dispatch)
        await self.resources.store.records.open_dispatch(dispatch, closing=answered)
        del self._unwritten[: len(answered)]
        return await self._ask(view, dispatch, prompt, params)

    def prompt_tokens(
        self, messages: Sequence[Message], *, tools: Sequence[ToolSchema] | None = None, restart: bool = False
    ) -> int:
        """Length of the prompt that `create_chat_completions` would send for these messages. Sends and changes nothing."""
        policy = self.task.policy
        fork = (self._views.get(policy) or self._new_view(policy, tools)).fork()
        fork.next_prompt(messages, restart=restart)
        return len(fork.context.ids)

    def mark(self, status: DispatchStatus) -> None:
        """Set the status of the last reply. It is written together with its tool calls."""
        self._unwritten[-1] = self._unwritten[-1].model_copy(update={"status": status})

    def add_tool_calls(self, tool_calls: Sequence[ToolCallResult], *, status: DispatchStatus | None = None) -> None:
        """Attach tool results to the last reply. They are written with the next request, or at the end of the episode."""
        update = {"tool_calls": list(tool_calls), **({} if status is None else {"status": status})}
        self._unwritten[-1] = self._unwritten[-1].model_copy(update=update)

    def score_turn(self, turn: Turn, score: float) -> None:
        """Assign `score` to `turn`, as a part of the episode's score. A second call replaces the first.

        Call it from `run` or `evaluate_record`. The episode's score is the total: the last turn receives the remainder.
        Only per-turn advantages use it (`reward_to_go`, `gigpo`). Raises ValueError for a turn of another episode
        and for a score that is not finite.
        """
        if turn.dispatch_id not in self.episode.dispatches or not math.isfinite(score):
            raise ValueError(
                f"score {score} of turn {turn.dispatch_id}: expected a finite number for a turn of this episode"
            )
        self.episode.turn_scores[turn.dispatch_id] = float(score)

    def add_metric(self, name: str, value: float) -> None:
        """Record a number about this episode; a second call replaces the first. `tandem show` prints it with the record,
        `tandem status` its mean by source, and the trainer logs `metric/NAME` and `metric_by_source/SOURCE/NAME`. Raises
        ValueError.
        """
        if not METRIC_NAME.fullmatch(name) or not math.isfinite(value):
            raise ValueError(f"metric {name!r} is {value}: expected letters, digits, - and _, and a finite number")
        self.episode.metrics[name] = float(value)

    def own_payload(self, model: type[PayloadT]) -> PayloadT:
        """The task's `metadata` validated as your `model`. Raises ConfigError naming the task and the field.

        `tandem tasks import --payload_model` runs the same check before it stores tasks.
        """
        problems = list(own_payload_problems(model, self.task.payload.metadata))
        if problems:
            raise ConfigError(f"task {self.task.id}: {problems[0]}")
        return model.model_validate(self.task.payload.metadata)

    async def finish_turn(self, unanswered: DispatchStatus = DispatchStatus.FAILED, *, failed: bool = False) -> None:
        """Write the last reply and its tool results unless already written. `unanswered`: status of a request without a reply.

        Raises DoesNotFit; with `failed`, stores the error in place of the contents instead.
        """
        ended = [
            d.model_copy(update={"status": unanswered}) if d.status is DispatchStatus.RUNNING else d
            for d in self._unwritten
        ]
        records = self.resources.store.records
        try:
            await records.close_dispatches(ended)
        except DoesNotFit:
            if not failed:
                raise
            for dispatch in ended:
                try:
                    await records.close_dispatches([dispatch])
                except DoesNotFit as exc:
                    await records.close_dispatches([_without_contents(dispatch, exc)])
        self._unwritten.clear()

    def ended_by(self, turn: Turn | None) -> Termination | None:
        """The termination that follows from the reply alone: no room for one, or cut off by the token budget."""
        if turn is None or turn.finish_reason == "length":
            return Termination.LENGTH_LIMIT
        return None

    def _view(self, policy: str, tools: Sequence[ToolSchema] | None) -> View:
        if policy not in self._views:
            self._views[policy] = self._new_view(policy, tools)
        return self._views[policy]

    def _new_view(self, policy: str, tools: Sequence[ToolSchema] | None) -> View:
        return View(policy, self.resources.policy_client(policy).template, tools, self.config.template_rewrites)

    def _next_dispatch(
        self, view: View, messages: Sequence[Message], restart: bool
    ) -> tuple[DispatchedSamplingTask, list[int]]:
        """The document of the next request, and the whole prompt to send."""
        turn = len(self.episode.dispatches)
        prompt = view.next_prompt(messages, restart=restart)
        dispatch = DispatchedSamplingTask(
            id=f"{self.claim.record_id}:{turn}",
            record=self.claim.record_id,
            policy=view.policy,
            turn=turn,
            parent=view.last_dispatch,
            shared_length=prompt.shared_length,
            branch_cause=prompt.cause,
            prompt_ids=pack_ints(prompt.added),
            messages=list(messages),
            tools_hash=view.tools_hash,
            sampling_params=self._sampling_params(view),
        )
        return dispatch, list(view.context.ids)

    def _sampling_params(self, view: View) -> dict[str, Any]:
        """Training uses no top-p, top-k or penalties, so that the stored log-probs are the policy's own."""
        config, is_training = self.config, self.task.split == TRAIN_SPLIT
        temperature = config.temperature
        if not is_training and config.eval_temperature is not None:
            temperature = config.eval_temperature
        if self.task.payload.temperature is not None:
            temperature = self.task.payload.temperature
        return {
            "temperature": temperature,
            "top_p": 1.0,
            **({} if is_training else config.eval_sampling.model_dump(exclude_none=True)),
            "stop_token_ids": list(view.context.format.end_ids),
            "skip_special_tokens": False,
        }

    async def _ask(
        self, view: View, dispatch: DispatchedSamplingTask, prompt: list[int], params: Mapping[str, Any]
    ) -> Turn:
        mixed = view.policy == self.config.policy and self.task.split == TRAIN_SPLIT
        source = await draw(self.resources.policy_client(view.policy).pool, self.resources.sources if mixed else ())
        reply = await source.pool.generate(
            prompt,
            params,
            rid=dispatch.id,
            affinity=view.affinity.get(source.name),
            timeout_s=self.config.engine_timeout_s,
            version=self.task.at_version if view.policy == self.task.policy else None,
        )
        generation = reply.generation
        view.affinity[source.name] = generation.url
        text = view.text_of(generation.output_ids)
        parsed = with_call_ids(self.resources.parser(text, view.context.tools or ()), dispatch.turn)
        message = message_of(parsed)
        words = reply_words(message, text, view.context.format.end_think)
        view.add_reply(generation.output_ids, message, words)
        self._unwritten[-1] = dispatch.model_copy(
            update={
                "status": DispatchStatus.FORMAT_ERROR if parsed.errors else DispatchStatus.COMPLETED,
                "error": clipped("; ".join(parsed.errors), MAX_ERROR_CHARS) or None,
                "service": generation.url,
                "sampled_by": source.policy,
                "continuations": len(reply.continuations),
                "weight_versions": [(version, n) for version, n in generation.version_runs],
                "usage": {
                    "prompt": len(prompt),
                    "cached": generation.cached_tokens,
                    "completion": len(generation.output_ids),
                },
                "response": SampledResponse(
                    text=text,
                    message=beyond_text(text, message),
                    output_ids=pack_ints(generation.output_ids),
                    output_logprobs=pack_floats(generation.logprobs),
                    finish_reason=generation.finish_reason,
                ),
            }
        )
        self.episode.num_tokens += len(generation.output_ids)
        sampled_by = {version for version, _ in generation.version_runs}
        if view.policy != self.task.policy:
            self.episode.other_versions.setdefault(view.policy, set()).update(sampled_by)
        else:
            self.episode.last_reply = text
            self._transcript.replied({"role": "assistant", "content": text} if parsed.errors else message, words)
            if source.policy is None:
                self.episode.versions |= sampled_by
        return Turn(dispatch.id, text, message, parsed, generation.finish_reason)


def _without_contents(dispatch: DispatchedSamplingTask, exc: DoesNotFit) -> DispatchedSamplingTask:
    """The storable part of a request whose reply or tool results do not fit. Its episode failed and is never trained."""
    status = DispatchStatus.FAILED if dispatch.status is DispatchStatus.COMPLETED else dispatch.status
    return dispatch.model_copy(update={"response": None, "tool_calls": [], "status": status, "error": str(exc)})
