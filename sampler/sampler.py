"""The public base class of everything that plays episodes, and the token-exact record that it keeps.

    class Greeter(AsyncSampler):
        async def run(self) -> Termination:
            turn = await self.create_chat_completions([{"role": "user", "content": self.task.payload.query}])
            return self.ended_by(turn) or Termination.ANSWERED

    python -m sampler --sampler my.module:Greeter ...

`create_chat_completions` takes only the messages that are new; it builds the prompt (previous ids + what the template adds),
asks an engine, and writes request and answer to the database. `run` plays, `evaluate_record` scores; leases, retries,
settlement and shutdown are the service's business. Errors of the plumbing (`EngineError`, `ToolFailure`, `ScorerFailed`) are
left to rise: the slot is retried, and they never become a reward.
"""

import hashlib
import json
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sampler.answers import extract_answer
from sampler.config import SamplerConfig
from sampler.context import Context, Prompt
from sampler.engine.pool import EnginePool
from sampler.parsers import MAX_CALLS, ParsedReply, Parser
from sampler.scorers import Score, ScoringRequest, score_answer
from sampler.template import ChatTemplate, ToolSchema
from sampler.tools import ToolCatalog, ToolServer
from shared.documents import Claim, DispatchedSamplingTask, SampledResponse, Task, ToolCallResult
from shared.packed import pack_floats, pack_ints
from shared.states import DispatchStatus, Termination
from shared.store import Store

log = logging.getLogger(__name__)

Message = dict[str, Any]
PROSE = ("content", "reasoning_content")


@dataclass(frozen=True, slots=True)
class Resources:
    """What the episodes of one process share."""

    store: Store
    config: SamplerConfig
    worker: str
    template: ChatTemplate
    pool: EnginePool
    tool_servers: Sequence[ToolServer]
    tool_catalog: ToolCatalog
    parser: Parser
    branch_causes: Counter[str] = field(default_factory=Counter)  # requests by `BranchCause`, for the worker's stats


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the model. `parsed.tool_calls` are what it asked for, `parsed.errors` what could not be read."""

    dispatch_id: str
    text: str
    message: Message
    parsed: ParsedReply
    finish_reason: str


@dataclass(slots=True)
class EpisodeLog:
    """What the episode's record will say."""

    dispatches: list[str] = field(default_factory=list)
    num_tokens: int = 0
    versions: set[int] = field(default_factory=set)
    last_reply: str = ""
    answer: str | None = None
    turn_scores: dict[str, float] = field(default_factory=dict)  # by dispatch

    def values(self) -> dict[str, Any]:
        return {
            "traj": self.dispatches,
            "num_turns": len(self.dispatches),
            "num_tokens": self.num_tokens,
            "policy_versions": sorted(self.versions),
            "answer": self.answer,
        }


class AsyncSampler(ABC):
    """One object plays one episode: the slot that `claim` holds."""

    def __init__(self, resources: Resources, claim: Claim) -> None:
        self.resources = resources
        self.config = resources.config
        self.claim = claim
        self.episode = EpisodeLog()
        self._context: Context | None = None
        self._last_output: list[int] = []
        self._last_message: Message | None = None
        self._unwritten: list[DispatchedSamplingTask] = []  # requests as they ended; written with the next one
        self._affinity: str | None = None

    @property
    def task(self) -> Task:
        return self.claim.task

    @abstractmethod
    async def run(self) -> Termination:
        """Play the episode to its end and say how it ended."""

    async def evaluate_record(self) -> Score:
        """Score the episode: the task's scorer over the answer in the last reply."""
        payload = self.task.payload
        reply = self.episode.last_reply
        request = ScoringRequest(
            answer=extract_answer(reply, payload.answer_schema),
            accepted=() if payload.answer is None else (payload.answer,),
            query=payload.query,
            reply=reply,
            payload=payload.model_dump(mode="json"),
        )
        self.episode.answer = request.answer
        return await score_answer(payload.scorer or self.config.default_scorer, request)

    # ------------------------------------------------------------------ what `run` uses

    async def create_chat_completions(
        self,
        new_messages: Sequence[Message],
        *,
        tools: Sequence[ToolSchema] | None = None,
        restart: bool = False,
    ) -> Turn | None:
        """Ask the policy for its next reply, after the messages that are new since the last one.

        None when the context has no room for another token (`Termination.LENGTH_LIMIT`). `tools` counts with the first call.
        `restart`: the messages are the whole history, as a context policy wants it from now on; a `Turn.message` of this
        episode among them (the very object) keeps its sampled ids. Raises EngineError.
        """
        dispatch, prompt = self._next_dispatch(new_messages, tools, restart)
        room = min(self.config.max_new_tokens, self.config.max_tokens - len(prompt))
        if room <= 0 or (not self.episode.dispatches and len(prompt) > self.config.max_prompt_tokens):
            return None
        params = {**dispatch.sampling_params, "max_new_tokens": room}
        dispatch = dispatch.model_copy(update={"status": DispatchStatus.RUNNING, "sampling_params": params})
        answered = list(self._unwritten)
        self.episode.dispatches.append(dispatch.id)
        self.resources.branch_causes[dispatch.branch_cause.value] += 1
        self._unwritten.append(dispatch)
        await self.resources.store.records.open_dispatch(dispatch, closing=answered)
        del self._unwritten[: len(answered)]
        return await self._ask(dispatch, prompt, params)

    def add_tool_calls(self, tool_calls: Sequence[ToolCallResult], *, status: DispatchStatus | None = None) -> None:
        """What came of the last reply. It is written with the next request, or at the end of the episode."""
        update = {"tool_calls": list(tool_calls), **({} if status is None else {"status": status})}
        self._unwritten[-1] = self._unwritten[-1].model_copy(update=update)

    def score_turn(self, turn: Turn, score: float) -> None:
        """Say that `turn` earned `score`, which is a part of the episode's score; said again, it is replaced.

        `run` may say it, or `evaluate_record`. The episode's score stays the whole: what is left of it is earned by the last
        turn. Only advantages by turn look at it (`reward_to_go`, `gigpo`). Raises ValueError for another episode's turn
        and for what is no number.
        """
        if turn.dispatch_id not in self.episode.dispatches or not math.isfinite(score):
            raise ValueError(f"score {score} of turn {turn.dispatch_id}: expected a number, for a turn of this episode")
        self.episode.turn_scores[turn.dispatch_id] = float(score)

    async def finish_turn(self, unanswered: DispatchStatus = DispatchStatus.FAILED) -> None:
        """Write what came of the last reply, if that has not been done; `unanswered`: what a request without a reply is."""
        ended = [
            d.model_copy(update={"status": unanswered}) if d.status is DispatchStatus.RUNNING else d
            for d in self._unwritten
        ]
        await self.resources.store.records.close_dispatches(ended)
        self._unwritten.clear()

    def ended_by(self, turn: Turn | None) -> Termination | None:
        """The termination that follows from the reply alone: no room, or cut by the token budget."""
        if turn is None or turn.finish_reason == "length":
            return Termination.LENGTH_LIMIT
        return None

    # ------------------------------------------------------------------ inside

    def _next_dispatch(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None, restart: bool
    ) -> tuple[DispatchedSamplingTask, list[int]]:
        """The document of the next request, and the whole prompt that it sends."""
        turn = len(self.episode.dispatches)
        if self._context is None:
            self._context = Context(self.resources.template, tools, self.config.template_rewrites)
            prompt = self._context.start(messages)
        else:
            prompt = self._next_prompt(self._context, messages, restart)
        self._last_output, self._last_message = [], None
        dispatch = DispatchedSamplingTask(
            id=f"{self.claim.record_id}:{turn}",
            record=self.claim.record_id,
            turn=turn,
            parent=self.episode.dispatches[-1] if self.episode.dispatches else None,
            shared_length=prompt.shared_length,
            branch_cause=prompt.cause,
            prompt_ids=pack_ints(prompt.added),
            messages=list(messages),
            tools_hash=_hash(self._context.tools),
            sampling_params=self._sampling_params(),
        )
        return dispatch, list(self._context.ids)

    def _next_prompt(self, context: Context, messages: Sequence[Message], restart: bool) -> Prompt:
        output, reply = self._last_output, self._last_message
        return context.restart(messages, output, reply) if restart else context.extend(output, messages, reply)

    def _sampling_params(self) -> dict[str, Any]:
        """Only what leaves log-probs meaning the policy's own: no top-p, no top-k, no penalties."""
        temperature = self.config.temperature
        if self.task.split != "train" and self.config.eval_temperature is not None:
            temperature = self.config.eval_temperature
        if self.task.payload.temperature is not None:
            temperature = self.task.payload.temperature
        assert self._context is not None
        return {
            "temperature": temperature,
            "top_p": 1.0,
            "stop_token_ids": list(self._context.format.end_ids),
            "skip_special_tokens": False,
        }

    async def _ask(self, dispatch: DispatchedSamplingTask, prompt: list[int], params: Mapping[str, Any]) -> Turn:
        reply = await self.resources.pool.generate(
            prompt,
            params,
            rid=dispatch.id,
            affinity=self._affinity,
            timeout_s=self.config.engine_timeout_s,
            version=self.task.at_version,
        )
        generation = reply.generation
        self._affinity = generation.url
        self._last_output = list(generation.output_ids)
        text = self._reply_text(generation.output_ids)
        parsed = _with_ids(self.resources.parser(text, self._context_tools()), dispatch.turn)
        message = self._last_message = _message(parsed)
        self._unwritten[-1] = dispatch.model_copy(
            update={
                "status": DispatchStatus.FORMAT_ERROR if parsed.errors else DispatchStatus.COMPLETED,
                "service": generation.url,
                "continuations": len(reply.continuations),
                "weight_versions": [(version, n) for version, n in generation.version_runs],
                "usage": {
                    "prompt": len(prompt),
                    "cached": generation.cached_tokens,
                    "completion": len(generation.output_ids),
                },
                "response": SampledResponse(
                    text=text,
                    message=_beyond(text, message),
                    output_ids=pack_ints(generation.output_ids),
                    output_logprobs=pack_floats(generation.logprobs),
                    finish_reason=generation.finish_reason,
                ),
            }
        )
        self.episode.num_tokens += len(generation.output_ids)
        self.episode.versions |= {version for version, _ in generation.version_runs}
        self.episode.last_reply = text
        return Turn(dispatch.id, text, message, parsed, generation.finish_reason)

    def _context_tools(self) -> Sequence[ToolSchema]:
        assert self._context is not None
        return self._context.tools or ()

    def _reply_text(self, output_ids: Sequence[int]) -> str:
        """For people and parsers, without the token that ended the turn; what is trained and continued are the ids.

        Every other special token stays: several families write their tool calls with them.
        """
        assert self._context is not None
        ended = bool(output_ids) and output_ids[-1] in self._context.format.end_ids
        return self.resources.template.decode(output_ids[:-1] if ended else output_ids)


def make_call_id(kind: str, number: int) -> str:
    """Nine letters and digits: what the strictest templates take."""
    return f"{kind}{number % 10**8:08d}"


def _with_ids(parsed: ParsedReply, turn: int) -> ParsedReply:
    """Every call has an id: the model's own, or one that is unique in the episode."""
    calls = [
        call if call.id else replace(call, id=make_call_id("c", turn * MAX_CALLS + index))
        for index, call in enumerate(parsed.tool_calls)
    ]
    return replace(parsed, tool_calls=calls)


def _message(parsed: ParsedReply) -> Message:
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def _beyond(text: str, message: Message) -> Message:
    """The message without those of its texts that stand in `text` word for word: stored once is enough."""
    return {name: value for name, value in message.items() if name not in PROSE or value not in text}


def _hash(tools: Sequence[ToolSchema] | None) -> str:
    return hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()[:16] if tools else ""
