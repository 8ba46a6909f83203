"""Environments of OpenEnv's servers, over their WebSocket: `echo=openenv:http://host:8000`. One connection is one session.

    index         the seed of the reset
    custom_task   {"reset": {"episode_id": "e1"}, "action_field": "message", "observation_field": "text"}

With `action_field` the reply's text is that field of the action. Without it the action is a tool, `act`, with the schema that
the server tells, and a reply calls it. `image_fields` names fields of the observation that are images: base64, a data: URL, or
lists of numbers (HxWx3, or flat with the shape in NAME_shape); `longest_edge` bounds their size in pixels. The connection is
our own: OpenEnv's client reconnects in silence, to another session.
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

from sampler.environments.adapters.observed import as_text
from sampler.environments.checked_step import WrongStep, image_part, number, shown, truth
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
)
from sampler.environments.task_fields import OBJECT, TEXT, TEXTS, fields_of, meant, whole

MESSAGE_S = 120.0  # for one call, where nobody says how long it may take
CLOSE_S = 1.0  # for the server's part of the end: one that hangs in a step gives none
MAX_MESSAGE_BYTES = 16 << 20
MAX_SHOWN_ERRORS = 5
CAPACITY_REACHED = "CAPACITY_REACHED"
VALIDATION_ERROR = "VALIDATION_ERROR"
TOOL = "act"
NOT_RUN = "This call was not run: the episode had ended before it."
SHAPE = "_shape"  # behind the name of a field of a flat list of numbers
HIDDEN = ("done", "reward", "metadata")  # of an observation: not the model's


class OpenEnvEnvironment(Environment):
    in_threads = True  # its calls wait for another server

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._open = contextlib.ExitStack()  # its connection

    def start(self, index: Index, task: Mapping[str, Any]) -> Step:
        from websockets.sync.client import connect

        fields = {"reset": OBJECT, "action_field": TEXT, "observation_field": TEXT, "instruction": TEXT}
        given = fields_of(task, **fields, image_fields=TEXTS, longest_edge=whole(1))
        options = dict(given.get("reset", {}))
        if "seed" in options:
            raise TaskRefused("reset has 'seed'; expected none: the index is the seed")
        self._begin()
        base = self.name.rstrip("/")
        self._action_field, self._observation_field = given.get("action_field"), given.get("observation_field")
        self._image_fields, self._longest_edge = tuple(given.get("image_fields", ())), given.get("longest_edge")
        tools = self._tools(base)
        connection = connect(
            base.replace("http", "ws", 1) + "/ws",
            open_timeout=self._remaining_s(),
            close_timeout=CLOSE_S,
            max_size=MAX_MESSAGE_BYTES,
            ping_interval=None,  # a step may take longer than the connection would wait for a pong: the time for the call counts
            proxy=None,
        )
        self._socket = self._open.enter_context(connection)
        seen = self._ask("reset", {"seed": seed_of(index), **options})
        if _is_done(seen):
            raise WrongStep("done of the answer to reset", True, "false: the model has not had its turn yet")
        self._require_fields(seen)
        instruction = given.get("instruction")
        return Step([_result(None, self._shown(seen, f"{instruction}\n\n" if instruction else ""))], tools=tools)

    def interact(self, replies: Sequence[Message]) -> Step:
        self._begin()
        if self._action_field:
            return self._step({self._action_field: reply_text(replies)}, None)
        calls = [call for reply in replies for call in reply.get("tool_calls") or ()]
        if not calls:
            return Step([_result(None, f"Call the tool {TOOL}.")], reward=0.0)
        return self._steps(calls)

    def close(self) -> None:
        self._open.close()

    def _begin(self) -> None:
        """The time for the call alone counts: a step may take as long as the service lets it."""
        self._until = time.monotonic() + (STEP_SHARE * self.within_s if math.isfinite(self.within_s) else MESSAGE_S)

    def _remaining_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _tools(self, base: str) -> list[dict[str, Any]] | None:
        """Raises TaskRefused for an action_field that the server's action does not have, as far as it tells its schema."""
        if self._action_field is None:
            return [_tool(_action_schema(base, self._remaining_s()))]
        try:
            names = tuple(_action_schema(base, self._remaining_s())["properties"])
        except (TaskRefused, KeyError):
            return None
        if names and self._action_field not in names:
            known = f"{', '.join(names)}{meant(self._action_field, names)}"
            raise TaskRefused(f"action_field is {self._action_field!r}; expected {known}")
        return None

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
            action = _arguments(call["function"].get("arguments"))
        except (ValueError, RecursionError) as exc:
            return Step([_result(call, f"The arguments are not JSON: {exc}")], reward=0.0)
        if not isinstance(action, dict):
            return Step([_result(call, f"The arguments are {shown(action)}; expected an object.")], reward=0.0)
        return self._step(action, call)

    def _step(self, action: Mapping[str, Any], call: Mapping[str, Any] | None) -> Step:
        try:
            seen = self._ask("step", action)
        except TaskRefused as exc:  # the action does not fit the schema: the model's doing
            return Step([_result(call, str(exc))], reward=0.0)
        return Step(
            [_result(call, self._shown(seen))],
            status=COMPLETED if _is_done(seen) else RUNNING,
            reward=None if seen.get("reward") is None else number("reward", seen["reward"]),
        )

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Raises NoRoom, TaskRefused for data that does not fit, and RuntimeError."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # a full server has said so before it closed
            self._socket.send(json.dumps({"type": kind, "data": data}))
        remaining_s = self._remaining_s()
        field = f"the answer of {self.name} to {kind}"
        try:
            received = self._socket.recv(timeout=remaining_s)
            answer = json.loads(received)
        except TimeoutError as exc:
            raise RuntimeError(f"{self.name} did not answer {kind} within {remaining_s:.3g} s") from exc
        except (ValueError, RecursionError) as exc:
            raise WrongStep(field, received, "JSON") from exc
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict):
            raise WrongStep(field, answer, "an object with the object 'data'")
        if answer.get("type") != "error":
            return content
        reason = _reason(content)
        if content.get("code") == CAPACITY_REACHED:
            raise NoRoom(f"{self.name}: {reason}")
        raise TaskRefused(reason) if content.get("code") == VALIDATION_ERROR else RuntimeError(reason)

    def _require_fields(self, seen: Mapping[str, Any]) -> None:
        """Raises TaskRefused where an opening does not have them."""
        names = tuple(map(str, _observation(seen)))
        given = [] if self._observation_field is None else [("observation_field", self._observation_field)]
        for field, name in (*given, *(("image_fields", one) for one in self._image_fields)):
            if name not in names:
                raise TaskRefused(f"{field} is {name!r}; the observation has {', '.join(names)}{meant(name, names)}")

    def _shown(self, seen: Mapping[str, Any], before: str = "") -> str | list[Any]:
        """The observation as text, and behind it its images."""
        observation = _observation(seen)
        images = [_image(observation, name) for name in self._image_fields if observation.get(name) is not None]
        parts = [image_part(f"observation.{name}", value, self._longest_edge) for name, value in images]
        text = before + self._text_of(seen)
        return [*([text] if text else []), *parts] if parts else text

    def _text_of(self, seen: Mapping[str, Any]) -> str:
        observation = _observation(seen)
        if self._observation_field is None:
            hidden = {*HIDDEN, *self._image_fields, *(name + SHAPE for name in self._image_fields)}
            rest = {name: value for name, value in observation.items() if name not in hidden}
            return "" if self._image_fields and not rest else as_text(rest)
        value = observation.get(self._observation_field)
        return "" if value is None else as_text(value)


def _observation(seen: Mapping[str, Any]) -> Mapping[str, Any]:
    value = seen.get("observation")
    if not isinstance(value, Mapping):
        raise WrongStep("observation", value, "an object")
    return value


def _image(observation: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """Its name and value: a flat list of numbers gets the shape of the field NAME_shape, as OpenEnv's Atari has it."""
    value, shape = observation[name], observation.get(name + SHAPE)
    is_flat = isinstance(value, list) and bool(value) and not isinstance(value[0], list)
    if not is_flat or not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        return name, value
    if math.prod(shape) != len(value):
        raise WrongStep(f"observation.{name}{SHAPE}", shape, f"the shape of {len(value):,} numbers")
    for size in reversed(shape[1:]):
        value = [value[at : at + size] for at in range(0, len(value), size)]
    return name, value


def _is_done(seen: Mapping[str, Any]) -> bool:
    return seen.get("done") is not None and truth("done", seen["done"])


def _reason(failure: Mapping[str, Any]) -> str:
    """Of an error, in the server's words as far as it has the protocol's form."""
    reason = f"{failure.get('message', 'no reason given')} ({failure.get('code', 'no code')})"
    errors = failure.get("errors")
    parts = [one for one in errors if isinstance(one, Mapping)] if isinstance(errors, list) else []
    listed = "; ".join(f"{one.get('loc')}: {one.get('msg')}" for one in parts[:MAX_SHOWN_ERRORS])
    return f"{reason}: {listed}" if listed else reason


def _arguments(given: Any) -> Any:
    """Of a call: an object, or JSON of one. Raises ValueError, also for NaN and infinities, which are no JSON."""
    return json.loads(given, parse_constant=_no_number) if isinstance(given, str) else given


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _action_schema(base: str, within_s: float) -> dict[str, Any]:
    """Asked directly, as the connection is. Raises TaskRefused."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{base}/schema", timeout=max(within_s, 0.1)) as answer:
            schemas = json.loads(answer.read(MAX_MESSAGE_BYTES))
    except (urllib.error.HTTPError, ValueError, RecursionError) as exc:
        raise TaskRefused(f"{base}/schema tells no action ({exc}); expected action_field in custom_task") from exc
    declared = schemas.get("action") if isinstance(schemas, dict) else None
    properties = declared.get("properties", {}) if isinstance(declared, dict) else None
    if not isinstance(declared, dict) or not isinstance(properties, dict):
        raise TaskRefused(
            f"{base}/schema tells {shown(schemas)}; expected an object 'action', a JSON schema, or action_field in custom_task"
        )
    return {**declared, "properties": {name: one for name, one in properties.items() if name != "metadata"}}


def _tool(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": TOOL, "description": "Your action.", "parameters": parameters}}


def _result(call: Mapping[str, Any] | None, content: str | list[Any]) -> Message:
    if call is None:
        return {"role": "user", "content": content}
    return {"role": "tool", "tool_call_id": str(call.get("id")), "content": content}
