"""Environments of OpenEnv's servers, over their WebSocket: `echo=openenv:http://host:8000`. One connection is one session.

    index         the seed of the reset
    custom_task   {"reset": {"episode_id": "e1"}, "action_field": "message", "observation_field": "text"}

With `action_field` the reply's text is that field of the action. Without it the action is a tool, `act`, with the schema that
the server tells, and a reply calls it. The connection is our own: OpenEnv's client reconnects in silence, to another session.
A server at its capacity (one session by default) is busy, and no failure.
"""

import contextlib
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.environments.checked_step import WrongStep, number
from sampler.environments.environment import (
    COMPLETED,
    RUNNING,
    STEP_SHARE,
    Environment,
    Index,
    Message,
    NoRoom,
    Step,
    TaskRefused,
    reply_text,
    require_known,
    seed_of,
    user_says,
)

MESSAGE_S = 120.0  # for one call at most
CLOSE_S = 1.0  # for the server's part of the end: one that hangs in a step gives none
MAX_MESSAGE_BYTES = 16 << 20
MAX_SHOWN_ERRORS = 5
CAPACITY_REACHED = "CAPACITY_REACHED"
VALIDATION_ERROR = "VALIDATION_ERROR"
TOOL = "act"
NOT_RUN = "This call was not run: the episode had ended before it."
HIDDEN = ("done", "reward", "metadata")  # of an observation: not the model's


class OpenEnvEnvironment(Environment):
    in_threads = True  # its calls wait for another server

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._open = contextlib.ExitStack()  # its connection

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        from websockets.sync.client import connect

        require_known(task, "reset", "action_field", "observation_field", "instruction")
        self._begin()
        base = self.name.rstrip("/")
        self._action_field = task.get("action_field")
        self._observation_field = task.get("observation_field")
        tools = None if self._action_field else [_tool(_action_schema(base, self._left_s()))]
        connection = connect(
            base.replace("http", "ws", 1) + "/ws",
            open_timeout=self._left_s(),
            close_timeout=CLOSE_S,
            max_size=MAX_MESSAGE_BYTES,
            ping_interval=None,  # a step may take longer than the connection would wait for a pong: the time for the call counts
            proxy=None,
        )
        self._socket = self._open.enter_context(connection)
        seen = self._ask("reset", {"seed": seed_of(index), **dict(task.get("reset") or {})})
        instruction = task.get("instruction")
        text = self._told(seen)
        return Step(user_says(f"{instruction}\n\n{text}" if instruction else text), tools=tools)

    def interact(self, replies: Sequence[Message]) -> Step:
        self._begin()
        if self._action_field:
            return self._step({self._action_field: reply_text(replies)}, None)
        calls = [call for reply in replies for call in reply.get("tool_calls") or ()]
        if not calls:
            return Step(user_says(f"Call the tool {TOOL}."), reward=0.0)
        return self._steps(calls)

    def close(self) -> None:
        self._open.close()

    def _begin(self) -> None:
        self._until = time.monotonic() + min(MESSAGE_S, STEP_SHARE * self.within_s)

    def _left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _steps(self, calls: Sequence[Mapping[str, Any]]) -> Step:
        """All calls of a reply, in their order, each with its answer. What follows the world's end is not run, and says so."""
        messages: list[Message] = []
        rewards: list[float] = []
        status = RUNNING
        for call in calls:
            if status != RUNNING:
                messages.append(_result(call, NOT_RUN))
                continue
            step = self._called(call)
            messages += step.messages
            rewards += [] if step.reward is None else [number("reward", step.reward)]
            status = step.status
        return Step(messages, status=status, reward=math.fsum(rewards) if rewards else None)

    def _called(self, call: Mapping[str, Any]) -> Step:
        name = call["function"]["name"]
        if name != TOOL:
            return Step([_result(call, f"There is no tool {name!r}. Call the tool {TOOL}.")], reward=0.0)
        try:
            action = json.loads(call["function"]["arguments"])
        except ValueError as exc:
            return Step([_result(call, f"The arguments are not JSON: {exc}")], reward=0.0)
        return self._step(action, call)

    def _step(self, action: Mapping[str, Any], call: Mapping[str, Any] | None) -> Step:
        try:
            seen = self._ask("step", action)
        except TaskRefused as exc:  # the action does not fit the schema: the model's doing
            return Step([_result(call, str(exc))], reward=0.0)
        return Step(
            [_result(call, self._told(seen))],
            status=COMPLETED if seen.get("done") else RUNNING,
            reward=seen.get("reward"),
        )

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Raises NoRoom, TaskRefused for data that does not fit, and RuntimeError."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # a full server has said so before it closed
            self._socket.send(json.dumps({"type": kind, "data": data}))
        left_s = self._left_s()
        try:
            answer = json.loads(self._socket.recv(timeout=left_s))
        except TimeoutError as exc:
            raise RuntimeError(f"{self.name} did not answer {kind} within {left_s:.3g} s") from exc
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict):
            raise WrongStep(f"the answer of {self.name} to {kind}", answer, "an object with the object 'data'")
        if answer.get("type") != "error":
            return found
        told = f"{found.get('message', 'no reason given')} ({found.get('code', 'no code')})"
        if errors := found.get("errors"):
            told += ": " + "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in errors[:MAX_SHOWN_ERRORS])
        if found.get("code") == CAPACITY_REACHED:
            raise NoRoom(f"{self.name}: {told}")
        raise TaskRefused(told) if found.get("code") == VALIDATION_ERROR else RuntimeError(told)

    def _told(self, seen: Mapping[str, Any]) -> str:
        observation = seen.get("observation") or {}
        if not isinstance(observation, Mapping):
            raise WrongStep("observation", observation, "an object")
        if self._observation_field:
            return str(observation.get(self._observation_field, ""))
        return json.dumps({k: v for k, v in observation.items() if k not in HIDDEN}, ensure_ascii=False)


def _action_schema(base: str, within_s: float) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{base}/schema", timeout=max(within_s, 0.1)) as answer:
            found: dict[str, Any] = json.loads(answer.read(MAX_MESSAGE_BYTES))["action"]
    except (urllib.error.HTTPError, ValueError, KeyError, TypeError) as exc:
        raise TaskRefused(f"{base}/schema tells no action ({exc}); expected action_field in custom_task") from exc
    found.get("properties", {}).pop("metadata", None)
    return found


def _tool(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": TOOL, "description": "Your action.", "parameters": parameters}}


def _result(call: Mapping[str, Any] | None, text: str) -> Message:
    if call is None:
        return {"role": "user", "content": text}
    return {"role": "tool", "tool_call_id": call["id"], "content": text}
