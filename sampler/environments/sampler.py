"""Plays episodes in environments that are services: `EnvironmentSampler`.

    start ─▶ [ reply ─▶ interact ─▶ reward of the turn, the world's next messages ]* ─▶ the world's end, or the model's limit
                          ├── a system message: the whole history: `restart`, with the tokens that were sampled
                          └── other tools: the conversation goes on in a new thread, whose prompt shows them

A task names its world: `{"query": "…", "metadata": {"environment": "lake", "index": 3}}`. Busy, lost, crashed and unreachable
services are no rewards (`docs/bring/environments.md`); what the world says of the model's replies is.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, StrictInt, StrictStr, model_validator

from sampler.core.episode.sampler import METRIC_NAME, AsyncSampler
from sampler.core.errors import EnvironmentFailed, MessagesRepeat
from sampler.core.kinds.conversation import Conversation
from sampler.core.kinds.mcp_sampler import error_messages
from sampler.core.parsers.reasoning import behind_reasoning
from sampler.core.rendering.reply_message import Message, Words, words_of
from sampler.core.rendering.turn import Turn
from sampler.core.scorers import Score
from sampler.environments.answers import StepReply
from sampler.environments.choosing import Environments
from sampler.environments.environment import SCORE
from sampler.environments.session import EnvironmentSession
from sampler.environments.step_images import stored_images
from sampler.environments.task_fields import meant
from shared.documents import ToolCallResult
from shared.documents.content import text_of
from shared.documents.states import Termination
from shared.errors import ConfigError
from shared.outside_text import clipped

OF_CUSTOM_TASK = frozenset(
    {"options", "actions", "config", "reset", "players", "seat", "opponent", "show", "longest_edge"}
)
MAX_RESULT_CHARS = 2_000  # stored of what the world says at its end
MAX_METRICS, MAX_METRIC_CHARS = 100, 100  # of an episode, and in a name; further ones are left out


class EnvironmentTask(BaseModel, extra="allow"):
    """A task's `metadata`. `custom_task`: fields for the environment, such as a difficulty."""

    environment: str
    index: StrictInt | StrictStr = 0
    custom_task: dict[str, Any] = {}

    @model_validator(mode="after")
    def what_is_meant_for_the_world_is_where_it_is_read(self) -> Self:
        """Other names are the task's own, such as a difficulty."""
        for name in self.model_extra or {}:
            if name in OF_CUSTOM_TASK:
                raise ValueError(f"{name} is no field beside environment; expected it in custom_task")
            guess = meant(name, tuple(EnvironmentTask.model_fields))
            if guess:
                raise ValueError(f"there is no field {name!r}{guess}")
        return self


class EnvironmentSampler(AsyncSampler):
    async def run(self) -> Termination:
        task = self.own_payload(EnvironmentTask)
        self.world = World(task.environment)
        sessions = self.resources.opened.of(Environments).session(task.environment, task.index, task.custom_task)
        async with sessions as session:
            return await self._play(session)

    async def _play(self, session: EnvironmentSession) -> Termination:
        step = await self._seen(session.opening)
        if step.finish:
            raise EnvironmentFailed(
                f"the environment ended before the model's first reply, with status {step.status!r}"
            )
        if step.seat is not None:
            raise ConfigError(
                f'environment {self.world.kind} asks several players; expected "sampler": "game" in the task'
            )
        talk = Talk(self, step)
        for _ in range(self.task.payload.max_turns or self.config.budget.max_turns):
            turn = await talk.next_turn()
            if turn is None:
                continue
            if isinstance(turn, Termination):
                return turn
            if turn.parsed.errors and not turn.parsed.tool_calls:
                talk.answer(turn, error_messages(turn))
                continue
            begun = time.monotonic()
            step = await self._seen(await session.interact([talk.sent(turn)]))
            self._note(turn, step, time.monotonic() - begun)
            if step.finish:
                self.world.is_over = True
                return step.termination
            talk.follow(turn, step)
        return Termination.TURNS_LIMIT

    async def _seen(self, step: StepReply) -> StepReply:
        return await stored_images(self.resources, self.resources.template, self.world.kind, step)

    async def evaluate_record(self) -> Score:
        """The world's score; else the sum of its rewards; a world that gives neither is scored by the task's scorer. Without
        one an episode that ended at the model's limit has earned nothing."""
        world = self.world
        if world.score is not None:
            return Score(world.score, world.details("score"))
        if world.rewards or (not world.is_over and self.task.payload.scorer is None):
            return Score(sum(world.rewards), world.details("sum of rewards"))
        if self.task.payload.scorer is None:
            raise EnvironmentFailed(
                f"environment {world.kind} ended without a reward or a score, and the task names no scorer"
            )
        return await super().evaluate_record()

    def _note(self, turn: Turn, step: StepReply, duration_s: float) -> None:
        if step.reward is not None:
            self.world.rewards.append(step.reward)
            self.score_turn(turn, step.reward)
        self.world.last(step)
        add_metrics(self, step)
        if turn.parsed.tool_calls:
            self.add_tool_calls(_results(turn, step, duration_s), turn=turn)


def add_metrics(sampler: AsyncSampler, step: StepReply) -> None:
    """The world's, as far as they fit."""
    for name, value in step.metrics.items():
        known = sampler.episode.metrics
        fits = len(name) <= MAX_METRIC_CHARS and (name in known or len(known) < MAX_METRICS)
        if name != SCORE and fits and METRIC_NAME.fullmatch(name):
            sampler.add_metric(name, value)


class World:
    """What the environment said of the episode."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rewards: list[float] = []
        self.score: float | None = None
        self.is_over = False
        self._status = "running"
        self._result: Any = None

    def last(self, step: StepReply) -> None:
        self.score = self.score if step.score is None else step.score
        self._status = step.status
        self._result = self._result if step.result is None else step.result

    def details(self, how: str) -> dict[str, Any]:
        result = {} if self._result is None else {"result": clipped(_text(self._result), MAX_RESULT_CHARS)}
        return {
            "scorer": f"environment:{self.kind}",
            "score_is": how,
            "rewards": self.rewards,
            "status": self._status,
        } | result


class Talk:
    """The conversation as the model sees it. `thread`: a new one for every other set of tools."""

    def __init__(self, sampler: AsyncSampler, step: StepReply) -> None:
        self._sampler = sampler
        self._tools = step.tools
        self._history = [*_system_of(sampler, step), *(dict(message) for message in step.messages)]
        self._thread: str | None = None
        self._num_threads = 0
        self._replies: dict[
            Words, list[Message]
        ] = {}  # what the world was sent ─▶ the replies, with their sampled tokens
        self._shown = self._conversation()

    def _conversation(self, *, restart: bool = False) -> Conversation:
        """Of the whole history, from here on."""
        browse = self._sampler.resources.agents.browse
        return Conversation(
            self._sampler, list(self._history), self._tools or (), browse, thread=self._thread, restart=restart
        )

    async def next_turn(self) -> Turn | Termination | None:
        """Raises EnvironmentFailed where the world's new messages repeat earlier ones."""
        try:
            return await self._shown.next_turn()
        except MessagesRepeat as exc:
            raise EnvironmentFailed(f"the environment's {exc}") from exc

    def answer(self, turn: Turn, messages: Sequence[Message]) -> None:
        self._history += [turn.message, *messages]
        self._shown.answer(turn, messages)

    def follow(self, turn: Turn, step: StepReply) -> None:
        """Go on with what the world said."""
        changed = step.tools is not None and list(step.tools) != list(self._tools or ())
        if step.restarts:
            self._history = self._known(step.messages)
        else:
            self.answer(turn, [dict(message) for message in step.messages])
        if changed:
            self._tools = step.tools
            self._num_threads += 1
            self._thread = f"tools-{self._num_threads}"
        if changed or step.restarts:
            self._shown = self._conversation(restart=not changed)

    def sent(self, turn: Turn) -> Message:
        """The reply as the protocol has it. An empty one would be a renewal: a blank stands for it."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in turn.parsed.tool_calls
        ]
        content = reply_as_written(turn) if calls or not turn.parsed.errors else turn.answer_text
        sent: Message = {"role": "assistant", "content": content or ("" if calls else " ")}
        if calls:
            sent["tool_calls"] = calls
        self._replies.setdefault(words_of(sent), []).append(turn.message)
        return sent

    def _known(self, messages: Sequence[Message]) -> list[Message]:
        """The replies themselves in place of the world's copies. The last copy of a text is the last reply of that text:
        histories are cut at their beginning."""
        unused = {words: list(replies) for words, replies in self._replies.items()}
        known: list[Message] = []
        for message in reversed(messages):
            same = unused.get(words_of(message)) if message["role"] == "assistant" else None
            known.append(same.pop() if same else dict(message))
        return known[::-1]


def reply_as_written(turn: Turn) -> str:
    """The reply without its reasoning and calls, with the blanks before its first line: an action may begin with them."""
    content = behind_reasoning(turn.parsed.content).strip()
    place = -1 if turn.parsed.tool_calls or not content else turn.answer_text.rfind(content)
    if place < 0:
        return content
    before = turn.answer_text[:place]
    blanks = before[len(before.rstrip()) :]
    return blanks.rpartition("\n")[2] + content


def _system_of(sampler: AsyncSampler, step: StepReply) -> list[Message]:
    """The task's or the sampler's system prompt, where the world has none of its own."""
    prompt = sampler.task.payload.system or sampler.config.prompt.system_prompt
    return [] if prompt is None or step.restarts else [{"role": "system", "content": prompt}]


def _blocks(content: Any) -> list[dict[str, Any]]:
    """Of an answer with images; of a text none."""
    return list(content) if isinstance(content, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _results(turn: Turn, step: StepReply, duration_s: float) -> list[ToolCallResult]:
    """The world's answers to the reply's calls, for people."""
    answers = {message.get("tool_call_id"): message.get("content") or "" for message in step.messages}
    return [
        ToolCallResult(
            id=call.id,
            name=call.name,
            arguments=dict(call.arguments),
            result=text_of(answers.get(call.id, ""), "\n"),
            blocks=_blocks(answers.get(call.id, "")),
            is_error=False,
            duration_s=round(duration_s, 4),
        )
        for call in turn.parsed.tool_calls
    ]
