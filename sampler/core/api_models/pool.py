"""The models of one agent, tried in order until one gives a usable reply.

    model 1: ask ─▶ retry after a back-off, at most max_retries times ─▶ model 2: … ─▶ AgentFailed
             └── paused by its breaker: skipped

A permanent failure (a wrong key, an unknown model) moves on to the next model at once; so does a `Retry-After` beyond the
time-out, which also pauses the model for that long. A reply that the agent cannot read is a failure like any other; the retry
reports the problem to the model. If no model answers, that is an infrastructure failure, never a score.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sampler.core.api_models.breaker import Breaker
from sampler.core.api_models.config import AgentConfig
from sampler.core.api_models.endpoint import AgentReply, Endpoint, Message, RequestFailed
from sampler.core.api_models.images import ReadImage, with_files, with_lines
from sampler.core.errors import AgentFailed
from shared.documents.agent_use import AgentUse, FailedRequest
from shared.documents.content import references_in
from shared.errors import DataError

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_REST_S = 600.0  # upper bound, even if Retry-After is longer
_MAX_ERROR_CHARS = 2000
_MAX_REPEATED_CHARS = 300  # quoted from an unusable reply in the retry: the prompt must not grow too long


class Unreadable(Exception):
    """The reply has the wrong form; the message names the expected form, and goes to the model."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    value: T
    text: str
    use: AgentUse


@dataclass(slots=True)
class _Member:
    endpoint: Endpoint
    breaker: Breaker


@dataclass(slots=True)
class _Log:
    """The failures and attempts of one question."""

    began: float = field(default_factory=time.monotonic)
    failures: list[FailedRequest] = field(default_factory=list)

    def add(self, endpoint: Endpoint, error: str) -> None:
        model, service = endpoint.config.model, endpoint.config.base_url
        log.warning("agent request failed model=%s service=%s %s", model, service, error)
        self.failures.append(FailedRequest(model=model, service=service, error=error))


class ModelPool:
    """`read_image`: files of images that messages name; None: each is a line of text."""

    def __init__(self, agent: str, config: AgentConfig, read_image: ReadImage | None = None) -> None:
        self._agent = agent
        self._read_image = read_image
        self._config = config
        self._members = [
            _Member(Endpoint(model, config.timeout_of(model)), Breaker(config.breaker_failures, config.breaker_pause_s))
            for model in config.models
        ]

    async def ask(self, messages: Sequence[Message], read: Callable[[str], T], first: int = 0) -> Answer[T]:
        """The first reply that `read` accepts; it raises Unreadable for others. `first`: the number of the model that is asked
        first, counted around. Raises AgentFailed."""
        trouble, begin = _Log(), first % len(self._members)
        for member in [*self._members[begin:], *self._members[:begin]]:
            sent = await self._as_sent(member, messages) if references_in(messages) else messages
            result = await self._ask_one(member, sent, read, trouble)
            if result is not None:
                value, reply = result
                return Answer(value, reply.text, self._use(trouble, member.endpoint, reply))
        use = self._use(trouble)
        failures = "; ".join(f"{f.model} at {f.service}: {f.error}" for f in use.failures)
        raise AgentFailed(f"no model of {self._agent} gave an answer: {failures[:_MAX_ERROR_CHARS]}", use)

    async def _as_sent(self, member: _Member, messages: Sequence[Message]) -> Sequence[Message]:
        if self._read_image is None or not member.endpoint.config.supports_vision:
            return with_lines(messages)
        try:
            return await with_files(messages, self._read_image)
        except DataError as exc:
            raise AgentFailed(f"{self._agent}: {exc}", self._use(_Log())) from exc

    async def close(self) -> None:
        for member in self._members:
            await member.endpoint.close()

    async def _ask_one(
        self, member: _Member, messages: Sequence[Message], read: Callable[[str], T], trouble: _Log
    ) -> tuple[T, AgentReply] | None:
        """None: try the next model; `trouble` has the reason."""
        endpoint, breaker = member.endpoint, member.breaker
        conversation: list[Message] = list(messages)
        for attempt in range(self._config.max_retries + 1):
            pause_s = breaker.enter()
            if pause_s > 0:
                trouble.add(
                    endpoint,
                    f"paused for {pause_s:.1f} s more, after {self._config.breaker_failures} failures in a row",
                )
                return None
            try:
                reply = await endpoint.ask(conversation)
            except RequestFailed as exc:
                trouble.add(endpoint, str(exc))
                wait_s = self._after_failure(member, exc, attempt)
            else:
                try:
                    value = read(reply.text)
                except Unreadable as exc:
                    trouble.add(endpoint, f"unusable reply: {reply.text[:200]!r}")
                    breaker.failed()
                    conversation = [*messages, {"role": "assistant", "content": reply.text[:_MAX_REPEATED_CHARS]}]
                    conversation.append({"role": "user", "content": str(exc)})
                    wait_s = self._backoff_s(attempt)
                else:
                    breaker.succeeded()
                    return value, reply
            if wait_s is None or attempt == self._config.max_retries:
                return None
            await asyncio.sleep(wait_s)
        return None

    def _after_failure(self, member: _Member, exc: RequestFailed, attempt: int) -> float | None:
        """Seconds until the next attempt with the same model; None: no further attempt."""
        if not exc.is_own:
            member.breaker.failed()
        wait_s = max(self._backoff_s(attempt), exc.retry_after_s or 0.0)
        if exc.retry_after_s is not None and wait_s > self._config.timeout_of(member.endpoint.config):
            member.breaker.rest(min(exc.retry_after_s, MAX_REST_S))
            return None
        return wait_s if exc.may_pass else None

    def _backoff_s(self, attempt: int) -> float:
        """Random within its upper half, so that a process's episodes do not retry all at once."""
        config = self._config
        return float(config.retry_delay * config.backoff_factor**attempt * random.uniform(0.5, 1.0))

    def _use(self, record: _Log, endpoint: Endpoint | None = None, reply: AgentReply | None = None) -> AgentUse:
        return AgentUse(
            agent=self._agent,
            model=endpoint.config.model if endpoint else None,
            service=endpoint.config.base_url if endpoint else None,
            failures=record.failures,
            prompt_tokens=reply.prompt_tokens if reply else None,
            completion_tokens=reply.completion_tokens if reply else None,
            duration_s=round(time.monotonic() - record.began, 4),
        )
