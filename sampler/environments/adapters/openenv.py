"""Environments of OpenEnv's servers, over their WebSocket: `echo=openenv:http://host:8000`. One connection is one session.

    index         the seed of the reset
    custom_task   {"reset": {"episode_id": "e1"}, "action_field": "message", "observation_field": "text"}

With `action_field` the reply's text is that field of the action. Without it the action is a tool, `act`, with the schema that
the server tells, and a reply calls it. The connection is our own: OpenEnv's client reconnects in silence, to another session.
A server at its capacity (one session by default) is busy, and no failure.
"""

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

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
HIDDEN = ("done", "reward", "metadata")  # of an observation: not the model's


class OpenEnvEnvironment(Environment):
    in_threads = True  # its calls wait for another server

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        from websockets.sync.client import connect

        self._begin()
        base = self.name.rstrip("/")
        self._action_field = task.get("action_field")
        self._observation_field = task.get("observation_field")
        tools = None if self._action_field else [_tool(_action_schema(base, self._left_s()))]
        self._socket = connect(
            base.replace("http", "ws", 1) + "/ws",
            open_timeout=self._left_s(),
            close_timeout=CLOSE_S,
            max_size=MAX_MESSAGE_BYTES,
            proxy=None,
        )
        seen = self._ask("reset", {"seed": seed_of(index), **dict(task.get("reset") or {})})
        instruction = task.get("instruction")
        text = self._told(seen)
        return Step(user_says(f"{instruction}\n\n{text}" if instruction else text), tools=tools)

    def interact(self, replies: Sequence[Message]) -> Step:
        self._begin()
        calls = replies[-1].get("tool_calls") or ()
        if self._action_field:
            return self._step({self._action_field: reply_text(replies)}, None)
        if not calls:
            return Step(user_says(f"Call the tool {TOOL}."), reward=0.0)
        try:
            action = json.loads(calls[0]["function"]["arguments"])
        except ValueError as exc:
            return Step([_result(calls[0], f"The arguments are not JSON: {exc}")], reward=0.0)
        return self._step(action, calls[0])

    def close(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def _begin(self) -> None:
        self._until = time.monotonic() + min(MESSAGE_S, STEP_SHARE * self.within_s)

    def _left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _step(self, action: Mapping[str, Any], call: Mapping[str, Any] | None) -> Step:
        try:
            seen = self._ask("step", action)
        except TaskRefused as exc:  # the action does not fit the schema: the model's doing
            return Step([_result(call, str(exc))], reward=0.0)
        reward = seen.get("reward")
        return Step(
            [_result(call, self._told(seen))],
            status=COMPLETED if seen.get("done") else RUNNING,
            reward=None if reward is None else float(reward),
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
        found: dict[str, Any] = answer.get("data") or {}
        if answer.get("type") != "error":
            return found
        told = f"{found.get('message', 'no reason given')} ({found.get('code', 'no code')})"
        if errors := found.get("errors"):
            told += ": " + "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in errors[:MAX_SHOWN_ERRORS])
        if found.get("code") == CAPACITY_REACHED:
            raise NoRoom(f"{self.name}: {told}")
        raise TaskRefused(told) if found.get("code") == VALIDATION_ERROR else RuntimeError(told)

    def _told(self, seen: Mapping[str, Any]) -> str:
        observation = dict(seen.get("observation") or {})
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
