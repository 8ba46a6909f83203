"""Worlds in which a model acts turn by turn until it answers: the base of the database and the shell.

A reply calls the world's tools. With {"form": "text"} in `custom_task` it writes them as marks instead: <sql>…</sql>, and at
the end <answer>…</answer>, one value per line. What a reply does wrong is told to the model; at `max_turns` the score is 0.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from sampler.environments.environment import (
    COMPLETED,
    RUNNING,
    STEP_SHARE,
    TASK_LIMIT,
    Environment,
    Message,
    Step,
    TaskRefused,
    reply_text,
    user_says,
)
from sampler.environments.task_fields import TEXT, FieldType, whole

MAX_TURNS = 12
MAX_ACTIONS = 4  # of one reply; further ones are not done
MAX_SHOWN_CHARS = 6_000  # of what one action gives
FORMS = ("tools", "text")
FORM_FIELDS: dict[str, FieldType] = {"form": TEXT, "max_turns": whole(1)}  # of custom_task, whatever the world is


@dataclass(frozen=True, slots=True)
class ToolOfWorld:
    """`takes`: the name of its one argument, a text or a list of texts. `mark`: its name in the form "text"."""

    name: str
    takes: str
    mark: str
    description: str
    ends: bool = False  # it is the answer
    is_list: bool = False

    def declared(self) -> dict[str, Any]:
        text = {"type": "string"}
        parameters = {
            "type": "object",
            "properties": {self.takes: {"type": "array", "items": text} if self.is_list else text},
            "required": [self.takes],
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class PendingCall:
    """One action of a reply. `problem`: why it cannot be done."""

    tool: ToolOfWorld | None
    values: tuple[str, ...] = ()
    call_id: str | None = None
    problem: str = ""


class ActingEnvironment(Environment):
    tools: ClassVar[tuple[ToolOfWorld, ...]]

    def opening(self, task: Mapping[str, Any], question: str) -> Step:
        """`task`: its fields, of the right types. `question`: with what the model must know of the world."""
        self._form = task.get("form", FORMS[0])
        if self._form not in FORMS:
            raise TaskRefused(f"form is {self._form!r}; expected one of {', '.join(FORMS)}")
        self._max_turns = task.get("max_turns", MAX_TURNS)
        self._turns = self._actions = self._unread = 0
        if self._form == "tools":
            return Step(user_says(question), tools=[tool.declared() for tool in self.tools])
        forms = "\n".join(f"<{tool.mark}>{tool.takes}</{tool.mark}>: {tool.description}" for tool in self.tools)
        return Step(user_says(f"{question}\n\nWrite in each reply one of these:\n{forms}"), tools=[])

    @abstractmethod
    def act(self, tool: ToolOfWorld, text: str, within_s: float) -> str:
        """Do it, and tell the model what came of it, also what it did wrong. An exception is the world's failure."""

    @abstractmethod
    def scored(self, answer: Sequence[str], within_s: float) -> tuple[float, dict[str, Any]]:
        """The score of the episode, and for people what was found and expected."""

    def interact(self, replies: Sequence[Message]) -> Step:
        self._turns += 1
        calls, results = self._pending_calls(replies), []
        for number, one in enumerate(calls):
            if one.tool is not None and one.tool.ends and not one.problem and number < MAX_ACTIONS:
                return self._ended(one.values)
            results.append(_result(one.call_id, self._done(one, number, len(calls))))
        if not calls:
            self._unread += 1
            results = user_says(f"That is no action. Use one of: {', '.join(self._names())}.")
        if self._turns >= self._max_turns:
            metrics = {"score": 0.0, **self._metrics()}
            return Step(
                results, status=TASK_LIMIT, reward=0.0, metrics=metrics, result=f"no answer in {self._turns} turns"
            )
        return Step(results, status=RUNNING, reward=0.0, metrics=self._metrics())

    def _done(self, one: PendingCall, number: int, num_actions: int) -> str:
        if number >= MAX_ACTIONS:
            return f"Not done: a reply may have {MAX_ACTIONS} actions."
        if one.problem or one.tool is None:
            self._unread += 1
            return one.problem
        self._actions += 1
        share = STEP_SHARE * self.within_s / (min(num_actions, MAX_ACTIONS) + 1)  # one for the scoring
        return clip(self.act(one.tool, "\n".join(one.values), share))

    def _ended(self, answer: Sequence[str]) -> Step:
        score, result = self.scored(answer, STEP_SHARE * self.within_s / 2)
        return Step(status=COMPLETED, reward=score, metrics={"score": score, **self._metrics()}, result=result)

    def _metrics(self) -> dict[str, float]:
        return {"world_actions": self._actions, "unread_actions": self._unread}

    def _names(self) -> list[str]:
        return [tool.name if self._form == "tools" else f"<{tool.mark}>" for tool in self.tools]

    def _pending_calls(self, replies: Sequence[Message]) -> list[PendingCall]:
        if self._form == "tools":
            return [self._called(call) for reply in replies for call in reply.get("tool_calls") or ()]
        by_mark = {tool.mark: tool for tool in self.tools}
        return [
            PendingCall(by_mark[mark], tuple(text.strip().splitlines()) if by_mark[mark].is_list else (text.strip(),))
            for mark, text in marked(reply_text(replies), list(by_mark))
        ]

    def _called(self, call: Mapping[str, Any]) -> PendingCall:
        function, call_id = call.get("function") or {}, str(call.get("id"))
        tool = next((tool for tool in self.tools if tool.name == function.get("name")), None)
        if tool is None:
            return PendingCall(None, (), call_id, f"No such tool; there are {', '.join(self._names())}.")
        arguments = function.get("arguments")
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError) as exc:
            return PendingCall(tool, (), call_id, f"The arguments are not JSON: {exc}")
        given = arguments.get(tool.takes) if isinstance(arguments, dict) else None
        values = given if tool.is_list and isinstance(given, list) else [given]
        if not all(isinstance(value, str | int | float) for value in values):
            return PendingCall(tool, (), call_id, f"{tool.takes} is missing; expected {tool.declared()['function']}")
        return PendingCall(tool, tuple(map(str, values)), call_id)


def is_own(task: Mapping[str, Any]) -> bool:
    """Whether the task is one of its own, not one of the index. Raises TaskRefused for a part of one."""
    if "question" not in task and (parts := [name for name in task if name not in FORM_FIELDS]):
        raise TaskRefused(f"custom_task has {parts[0]!r} without a question; expected the question that it belongs to")
    return "question" in task


def marked(text: str, marks: Sequence[str]) -> list[tuple[str, str]]:
    """What stands in <mark>…</mark>, in order. A mark that is never closed is looked for once, so that the time grows with the
    length of the text alone: by a regular expression, 20,000 open marks took 10 s."""
    opening, unclosed, blocks, place = re.compile(f"<({'|'.join(marks)})>"), set[str](), [], 0
    while begin := opening.search(text, place):
        mark, place = begin[1], begin.end()
        end = -1 if mark in unclosed else text.find(f"</{mark}>", place)
        if end < 0:
            unclosed.add(mark)
            continue
        blocks.append((mark, text[place:end]))
        place = end + len(f"</{mark}>")
    return blocks


def _result(call_id: str | None, text: str) -> Message:
    if call_id is None:
        return {"role": "user", "content": text}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def clip(text: str, most: int = MAX_SHOWN_CHARS) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def same_values(answer: Sequence[str], expected: Sequence[object]) -> bool:
    """The same values in any order: numbers as numbers, texts without their case."""
    return sorted(map(_value, answer)) == sorted(map(_value, expected))


def _value(value: object) -> tuple[int, Any]:
    text = str(value).strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    return (0, number) if number.is_finite() else (1, text.casefold())


def count_of(name: str, splits: Mapping[str, int]) -> int:
    """The tasks of a split. Raises ValueError."""
    if name not in splits:
        raise ValueError(f"there is no split {name!r}; expected one of {', '.join(splits)}")
    return splits[name]
