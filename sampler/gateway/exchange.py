"""A request and a reply of the gateway, in the form that all dialects are translated to and from. Plain values, no I/O.

Messages are those that chat templates take: `role`, `content`, `tool_calls` with arguments as an object, `tool_call_id`. So the
session and the sampler know nothing of dialects. A content is a text, or blocks of texts and images: a `SentImage` as it was
read, a reference once the image is stored (`received_images`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sampler.core.rendering.template import ToolSchema
from shared.scores import usable_score

ReceivedMessage = dict[str, Any]


class Problem(StrEnum):
    """Why a request gets no reply. Each dialect has its own name and status for it."""

    INVALID = "invalid"  # the body is not what the dialect allows, or asks for what cannot be given
    NO_KEY = "no_key"  # the key is unknown, or its attempt has ended
    NO_MODEL = "no_model"  # `model` names no policy of this process
    NOT_FOUND = "not_found"  # no such path
    TOO_LARGE = "too_large"  # the body exceeds the limit
    TOO_LONG = "too_long"  # the context has no room for another token
    TOO_MANY = "too_many"  # too many requests of one attempt at once
    LIMIT = "limit"  # the episode has used up its turns
    FAILED = "failed"  # infrastructure failed: the attempt ends without a score


class GatewayError(Exception):
    """A request that gets no reply; the message is for the agent's log."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem, self.message = problem, message

    @property
    def may_pass(self) -> bool:
        """Whether the very same request may get a reply if it is sent again."""
        return self.problem is Problem.TOO_MANY

    @property
    def is_limit(self) -> bool:
        """Whether the context could never hold what the request has."""
        return self.problem is Problem.TOO_LARGE


class TooManyImages(GatewayError):
    """More than a prompt may have."""

    def __init__(self, message: str) -> None:
        super().__init__(Problem.TOO_LONG, message)

    @property
    def is_limit(self) -> bool:
        return True


class RetryRequest(GatewayError):
    """A failure that leaves the attempt as it was."""

    def __init__(self, message: str) -> None:
        super().__init__(Problem.FAILED, message)

    @property
    def may_pass(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image as a client sent it. `path`: its place in the request. `data`: base64, or a data: URL."""

    path: str
    data: str


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


@dataclass(frozen=True, slots=True)
class SentRequest:
    """`identity`: equal for the same request sent again. `is_again`: the client says that it is."""

    identity: str = ""
    is_again: bool = False


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The form that a request demands of the answer. `schema`: a JSON schema; None: any JSON object. `path`: where it stands."""

    path: str
    schema: Mapping[str, Any] | None = None
    name: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`messages`: the whole history, as every dialect sends it. `unused`: every member of the request that changes nothing
    here, by its path. `distribution`: its sampling parameters, by their paths and our names. `stop`: texts at which the
    reply ends. `may_call`: whether a call in the reply is one. `wants_logprobs`: of the sampled tokens. `prefix`: the reply's
    beginning, which the client wrote. `shows_reasoning`: whether the client understands it."""

    model: str
    messages: Sequence[ReceivedMessage]
    tools: Sequence[ToolSchema] = ()
    max_tokens: int | None = None
    stream: bool = False
    stream_usage: bool = True
    shows_reasoning: bool = True
    may_call: bool = True
    wants_logprobs: bool = False
    stop: tuple[str, ...] = ()
    distribution: Mapping[tuple[str, str], float] = field(default_factory=dict)
    output_format: OutputFormat | None = None
    prefix: str = ""
    unused: Mapping[str, Any] = field(default_factory=dict)
    failed_calls: frozenset[str] = frozenset()  # ids of calls whose results the client marks as errors
    namespaces: frozenset[str] = frozenset()  # of tools, whose names are NAMESPACE.NAME for the model


@dataclass(frozen=True, slots=True)
class RepliedCall:
    id: str
    name: str
    arguments: Mapping[str, Any]

    @property
    def as_json(self) -> str:
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token of a reply. `text`: alone, with U+FFFD where it is a part of a character. `logprob`: as it was sampled."""

    id: int
    text: str
    logprob: float

    @property
    def as_bytes(self) -> list[int] | None:
        """None where the text does not say which bytes it stands for."""
        return None if "\ufffd" in self.text else list(self.text.encode())


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What is known of a reply before it is sampled. `id`: by which a score can be posted for this turn. `cached_tokens`: of
    the prompt, 0 until the reply is whole."""

    id: str
    model: str
    created: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ChatReply(ReplyHead):
    """`is_cut`: by the limit of tokens. `stopped_by`: the text of `stop` that ended it. `tokens`: all that were sampled, if the
    request wants their log-probs. `is_replayed`: an earlier reply, told once more to a client that asked once more."""

    content: str
    reasoning: str
    calls: Sequence[RepliedCall]
    is_cut: bool
    completion_tokens: int
    stopped_by: str | None = None
    tokens: Sequence[SampledToken] | None = None
    is_replayed: bool = False


def checked_score(score: object) -> float:
    """Raises GatewayError for a score that the trainer cannot use."""
    try:
        return usable_score(score)
    except ValueError as exc:
        raise GatewayError(Problem.INVALID, f"score is {exc}") from exc


def reply_id(dispatch_id: str) -> str:
    """Without characters that clients do not expect in an id."""
    return dispatch_id.replace(":", "-")


Event = tuple[str | None, Any]  # name (None: without) and data, a text or JSON


class ReplyWriter(ABC):
    """Writes one reply as events of a dialect, in as many pieces as it becomes known."""

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self._begun = False
        self._reasoning = self._content = 0  # characters that were written

    def told(self, head: ReplyHead, reasoning: str, content: str) -> list[Event]:
        """Events for what is new in `reasoning` and `content`, each of which begins with what was told before."""
        events = [] if self._begun else list(self.begin(head))
        self._begun = True
        new = reasoning[self._reasoning :]
        if new:
            events += self.more_reasoning(new)
            self._reasoning += len(new)
        new = content[self._content :]
        if new:
            events += self.more_content(new)
            self._content += len(new)
        return events

    def whole(self, reply: ChatReply) -> list[Event]:
        """The rest of the reply, and its end."""
        return [*self.told(reply, reply.reasoning, reply.content), *self.end(reply)]

    @abstractmethod
    def begin(self, head: ReplyHead) -> Iterator[Event]: ...

    @abstractmethod
    def more_reasoning(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def more_content(self, text: str) -> Iterator[Event]: ...

    @abstractmethod
    def end(self, reply: ChatReply) -> Iterator[Event]: ...
