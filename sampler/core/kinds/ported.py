"""Plays samplers that were written for AgentRL: `run(self, task)`, whole histories, OpenAI's answers.

    class MathPort(ChatPort):                                  class Math(PortedSampler):
        async def run(self, task): ...                             port = MathPort
        async def evaluate_record(self, record): ...
                                                               python -m sampler --sampler my.module:Math ...

Each call's messages are compared with what the episode's threads hold. A list that begins with all of a thread goes on there, and
only the rest is new; another list is a thread of its own, so calls may be made at the same time. Nothing is sent twice, and
the model's replies keep their sampled ids (docs/start/from_agentrl.md).
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from openai.types.chat import ChatCompletion

from sampler.core.episode.sampler import AsyncSampler, Turn
from sampler.core.rendering.reply_message import Message, Words, reply_words, words_of
from sampler.core.rendering.template import ToolSchema
from sampler.core.scorers import Score
from shared.documents import Claim, ToolCallResult
from shared.documents.content import IMAGE_BLOCKS, text_of
from shared.documents.states import Termination
from shared.errors import ConfigError

log = logging.getLogger(__name__)

SeatTurn = tuple[str, frozenset[Words]]  # role, and the forms that a message may have


class ContextIsFull(Exception):
    """The context has no room for another token; the episode ends with `length_limit`."""


@dataclass(slots=True)
class PortedRecord:
    """The record as a ported sampler knows it. What is put in `meta_infos` becomes the score's details."""

    task: SimpleNamespace
    traj_id: int
    meta_infos: dict[str, Any] = field(default_factory=dict)
    score: float | None = None


@dataclass(slots=True)
class _Thread:
    name: str | None
    policy: str
    history: list[SeatTurn] = field(default_factory=list)
    last: Turn | None = None
    has_open_request: bool = False
    has_results: bool = False  # those of its last turn

    def begins(self, policy: str, history: Sequence[SeatTurn]) -> bool:
        same = zip(self.history, history, strict=False)
        return (
            self.policy == policy
            and len(self.history) < len(history)
            and all(mine[0] == role and mine[1] & words for mine, (role, words) in same)
        )


class ChatPort(ABC):
    """What a ported sampler inherits from. `task` has the fields of the task's metadata, and `id`, `query`, `answer`."""

    def __init__(self, sampler: AsyncSampler) -> None:
        payload, claim = sampler.task.payload, sampler.claim
        fields = {"id": sampler.task.tid, "query": payload.query, "answer": payload.answer, **payload.metadata}
        self.sampler = sampler
        self.task = SimpleNamespace(**fields)
        self.record = PortedRecord(self.task, claim.traj_id)
        self.is_cut = False  # the last reply was cut off by its token budget
        self._threads: list[_Thread] = []

    @abstractmethod
    async def run(self, task: SimpleNamespace) -> object:
        """Play the episode; what it returns is ignored."""

    async def evaluate_record(self, record: PortedRecord) -> float | None:
        """The score. None: the task's own scorer."""
        return None

    async def create_chat_completions(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        n: int = 1,
        **ignored: Any,
    ) -> ChatCompletion:
        """`messages`: the whole history. `model`: a policy of the run; None or an unknown name: the task's own.

        Sampling parameters are the run's: `ignored` ones are named in the log, once. Raises ContextIsFull, ConfigError for `n`
        above 1, and what `AsyncSampler.create_chat_completions` raises.
        """
        if n != 1:
            raise ConfigError(
                f"n is {n}: a reply at a time is recorded; call create_chat_completions {n} times at once"
            )
        _log_ignored(type(self), ignored)
        known = self.sampler.resources.others
        policy = model if model is not None and model in known else self.sampler.task.policy
        spoken = [(str(message.get("role")), frozenset({words_of(message)})) for message in messages]
        thread = self._thread(policy, spoken)
        thread.has_open_request = True
        try:
            turn = await self._ask(thread, [dict(message) for message in messages], tools)
        finally:
            thread.has_open_request = False
        if turn is None:
            raise ContextIsFull
        reply = reply_words(turn.message, turn.text, "</think>")
        thread.history, thread.last, thread.has_results = [*spoken, ("assistant", reply)], turn, False
        self.is_cut = turn.finish_reason == "length"
        return _completion(turn, policy)

    def _thread(self, policy: str, spoken: Sequence[SeatTurn]) -> _Thread:
        """The thread with the longest history that `spoken` begins with, or a new one."""
        fitting = [thread for thread in self._threads if not thread.has_open_request and thread.begins(policy, spoken)]
        if fitting:
            return max(fitting, key=lambda thread: len(thread.history))
        thread = _Thread(None if not self._threads else f"{len(self._threads) + 1}", policy)
        self._threads.append(thread)
        return thread

    async def _ask(self, thread: _Thread, messages: list[Message], tools: Sequence[ToolSchema] | None) -> Turn | None:
        new = messages[len(thread.history) :]
        if thread.last is not None and not thread.has_results:  # a request that is asked again brings the same ones
            self.sampler.add_tool_calls(_results(thread.last, new), turn=thread.last)
            thread.has_results = True
        restart = thread.last is not None and any(message.get("role") == "assistant" for message in new)
        return await self.sampler.create_chat_completions(
            messages if restart else new, tools=tools, restart=restart, policy=thread.policy, thread=thread.name
        )


class PortedSampler(AsyncSampler):
    """Plays `port`, a class written for AgentRL's interface."""

    port: ClassVar[type[ChatPort]]

    def __init__(self, resources: Any, claim: Claim) -> None:
        super().__init__(resources, claim)
        self.ported = self.port(self)

    async def run(self) -> Termination:
        try:
            await self.ported.run(self.ported.task)
        except ContextIsFull:
            return Termination.LENGTH_LIMIT
        return Termination.LENGTH_LIMIT if self.ported.is_cut else Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        score = await self.ported.evaluate_record(self.ported.record)
        if score is None:
            return await super().evaluate_record()
        details: dict[str, Any] = json.loads(json.dumps(self.ported.record.meta_infos, default=str))
        return Score(score, details)


_reported: set[tuple[type, str]] = set()


def _log_ignored(kind: type, ignored: Mapping[str, Any]) -> None:
    new = [name for name in ignored if (kind, name) not in _reported]
    _reported.update((kind, name) for name in new)
    if new:
        log.warning("ignored parameters=%s of=%s: the run's settings say how is sampled", ",".join(new), kind.__name__)


def _results(turn: Turn, messages: Sequence[Message]) -> list[ToolCallResult]:
    """The tool results at the beginning of `messages`, as recorded with the turn that called."""
    calls = {call.id: call for call in turn.parsed.tool_calls}
    entries = []
    for message in messages:
        call = calls.get(str(message.get("tool_call_id")))
        if message.get("role") != "tool" or call is None:
            break
        content = message.get("content")
        entries.append(
            ToolCallResult(
                id=call.id,
                name=call.name,
                arguments=dict(call.arguments),
                result=_result_text(content),
                is_error=False,
                duration_s=0.0,
            )
        )
    return entries


def _result_text(content: Any) -> str:
    """Of blocks with images the texts: the messages of the next request name the images."""
    if isinstance(content, list) and any(
        isinstance(one, Mapping) and one.get("type") in IMAGE_BLOCKS for one in content
    ):
        return text_of(content, "\n")
    return content if isinstance(content, str) else json.dumps(content, default=str)


def _completion(turn: Turn, policy: str) -> ChatCompletion:
    message = {"role": "assistant", **turn.message}
    message["content"] = turn.text if turn.parsed.errors else turn.message.get("content")
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in turn.message.get("tool_calls", ())
    ]
    message["tool_calls"] = calls or None
    ended = "length" if turn.finish_reason == "length" else "tool_calls" if calls else "stop"
    return ChatCompletion.model_validate(
        {
            "id": turn.dispatch_id,
            "object": "chat.completion",
            "created": 0,
            "model": policy,
            "choices": [{"index": 0, "finish_reason": ended, "message": message}],
        }
    )
