"""Reads the answers of controllers: each is checked whole where it enters, and what is wrong is `EnvironmentFailed`. A service of
ours has checked it before (`checked_step.py`); of a foreign one, nobody knows whether it or something before it answered.

So a step holds only what templates, documents and scorers take: known roles, text, images as data: URLs, tools with names, finite
numbers, names without NUL, few levels, whole numbers of 64 bits. Half surrogate pairs, and NUL in texts, are replaced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from sampler.core.errors import EnvironmentFailed
from sampler.core.parsers.reply import problem_of
from sampler.core.scorers import is_finite_number
from sampler.environments.environment import (
    COMPLETED,
    CONTEXT_LIMIT,
    INVALID_ACTION,
    MAX_SEATS,
    MAX_STEP_IMAGES,
    RUNNING,
    SCORE,
    TASK_LIMIT,
    UNKNOWN,
    VALIDATION_FAILED,
)
from shared.documents.states import Termination
from shared.images.bounds import IMAGE_ROLES
from shared.images.header import DATA_URL
from shared.names import ROLES, shortened
from shared.outside_text import clipped, storable
from shared.outside_values import MAX_DEPTH
from shared.scores import EXPECTED, is_usable, usable_score

MAX_TOLD_CHARS = 500

ENDS = MappingProxyType(
    {
        COMPLETED: Termination.ANSWERED,
        VALIDATION_FAILED: Termination.ANSWERED,
        INVALID_ACTION: Termination.ANSWERED,
        TASK_LIMIT: Termination.TURNS_LIMIT,
        CONTEXT_LIMIT: Termination.LENGTH_LIMIT,
    }
)


@dataclass(frozen=True, slots=True)
class StepReply:
    """What the environment answered, checked. `tools`: None: as before. `score`: the episode's, so far. Of several players:
    `seat`, whose turn it is, and at the end `rewards` by seat."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None
    status: str
    finish: bool
    reward: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    result: Any = None
    seat: int | None = None
    rewards: Mapping[int, float] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        return self.metrics.get(SCORE)

    @property
    def restarts(self) -> bool:
        """Whether `messages` is the whole history."""
        return any(message["role"] == "system" for message in self.messages)

    @property
    def termination(self) -> Termination:
        """How an ended session ended. Raises EnvironmentFailed where that is no end of the world: its reward is none either."""
        if self.status in ENDS:
            return ENDS[self.status]
        if self.status == UNKNOWN and (self.reward is not None or self.score is not None):
            return Termination.ANSWERED
        details = clipped(str(self.result or "no reason given"), MAX_TOLD_CHARS)
        raise EnvironmentFailed(f"the environment ended with status {self.status!r}: {details}")


class _Called(BaseModel):
    name: str
    arguments: str | dict[str, Any]


class _Call(BaseModel):
    id: str | None = None
    function: _Called


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


class _ImageUrl(BaseModel):
    url: str


class _ImagePart(BaseModel):
    type: Literal["image_url"]
    image_url: _ImageUrl


class _Message(BaseModel):
    role: Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
    content: str | list[Annotated[_TextPart | _ImagePart, Field(discriminator="type")]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None


class _Function(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    function: _Function


class _Answer(BaseModel):
    messages: list[_Message] | None = None
    tools: list[_Tool] | None = None
    status: str | None = None
    finish: bool | None = None
    metrics: dict[str, Any] | None = None
    metric: dict[str, Any] | None = None
    seat: Annotated[int, Field(ge=0, lt=MAX_SEATS, strict=True)] | None = None
    rewards: dict[Annotated[int, Field(ge=0, lt=MAX_SEATS)], Any] | None = None


def step_of(content: Any, url: str) -> StepReply:
    """Raises EnvironmentFailed for an answer that is none of the protocol."""
    if isinstance(content, dict) and isinstance(content.get("env_out"), dict):  # as AgentRL's workers answer `interact`
        content = content["env_out"]
    try:
        step = _read(_whole(content))
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'the answer'} is {shortened(first['input'])}: {first['msg']}"
        raise EnvironmentFailed(f"{url} answered what is no step of the protocol: {problem}") from exc
    except ValueError as exc:
        raise EnvironmentFailed(f"{url} answered what is no step of the protocol: {exc}") from exc
    if not step.finish and not step.messages:
        raise EnvironmentFailed(f"{url} answered without a message for the model, and without an end")
    return step


def _read(content: Any) -> StepReply:
    """Raises ValueError, and ValidationError, which is one."""
    answer = _Answer.model_validate(content)
    status = answer.status or (UNKNOWN if answer.finish else RUNNING)
    for name in ("messages", "tools"):
        problem = problem_of({name: content.get(name)})
        if problem:
            raise ValueError(problem)
    messages = [_message(message) for message in content.get("messages") or ()]
    _require_few_images(messages)
    return StepReply(
        messages=messages,
        tools=None if answer.tools is None else content["tools"],
        status=status,
        finish=status != RUNNING if answer.finish is None else answer.finish,
        reward=_number("the reward", content.get("reward")),
        metrics=_metrics(answer.metrics or answer.metric or {}),
        result=content.get("result"),
        seat=answer.seat,
        rewards={seat: _earned(seat, reward) for seat, reward in (answer.rewards or {}).items()},
    )


def _whole(value: Any, depth: int = 0) -> Any:
    """The answer with storable texts. Raises ValueError."""
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return storable(value).replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_whole(part, depth + 1) for part in value]
    if isinstance(value, dict):
        return {storable(name): _whole(part, depth + 1) for name, part in value.items()}
    return value


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Its content becomes text, or text and images. Only an assistant message with tool calls may lack content. Raises
    ValueError."""
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise ValueError(f"a message of role {message['role']} has no content; expected text")
    if isinstance(content, list):
        if all(part["type"] == "text" for part in content):
            content = "\n".join(part["text"] for part in content)
        elif message["role"] not in IMAGE_ROLES:
            raise ValueError(f"a message of role {message['role']} has images; expected {' or '.join(IMAGE_ROLES)}")
        else:
            _require_data_urls(content)
    return {**message, "content": content or ""}


def _require_data_urls(content: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError: no host is asked for an image, and no file is read."""
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    other = next((url for url in urls if not url.startswith(DATA_URL)), None)
    if other is not None:
        raise ValueError(f"the URL of an image is {shortened(other)}; expected one that begins with {DATA_URL}")


def _require_few_images(messages: Sequence[dict[str, Any]]) -> None:
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    count = sum(part["type"] != "text" for content in contents for part in content)
    if count > MAX_STEP_IMAGES:
        raise ValueError(f"{count} images in a step; expected {MAX_STEP_IMAGES} at most")


def _number(name: str, value: Any) -> float | None:
    """A usable score, or None. Raises ValueError for all else, such as NaN, which must not become a reward."""
    if value is None:
        return None
    if not is_usable(value):
        raise ValueError(f"{name} is {shortened(value)}; expected {EXPECTED}")
    return usable_score(value)


def _earned(seat: int, reward: Any) -> float:
    """Raises ValueError, also for None: a seat without a reward is left out."""
    earned = _number(f"the reward of seat {seat}", reward)
    if earned is None:
        raise ValueError(f"the reward of seat {seat} is null; expected a finite number, or no entry for the seat")
    return earned


def _metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are finite numbers; the others are the environment's own business, but for the score."""
    _number("metrics.score", metrics.get(SCORE))
    return {name: float(value) for name, value in metrics.items() if is_finite_number(value)}
