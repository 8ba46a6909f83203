"""One model behind an OpenAI-compatible endpoint: one request yields one reply or `RequestFailed`.

Errors of the client library are translated only here. Its own retries are disabled: the pool retries. The API key is sent only
in the request's header; if an endpoint repeats it in an error message, it is removed.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sampler.core.api_models.config import ModelConfig
from sampler.core.parsers.reasoning import behind_reasoning
from shared.http.retry_after import retry_after_s
from shared.outside_text import storable, text_of

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

Message = Mapping[str, Any]

# Statuses after which the same request may succeed; also all above 499.
_PASSING = frozenset({408, 409, 425, 429})
# The request itself is rejected: another one may succeed, so these do not count against the model's health.
_REQUESTS_OWN = frozenset({400, 413, 422})
_MAX_TOLD_CHARS = 300
NO_KEY = "none"  # the client requires a key; a service without keys ignores it
_VERSION = re.compile(r"/v\d+(?:/|$)")  # in the path of nearly every OpenAI-compatible endpoint


@dataclass(frozen=True, slots=True)
class AgentReply:
    """`text`: nonblank, without the reasoning before it. Token counts: None if the endpoint reports none."""

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None


class RequestFailed(Exception):
    """No usable reply. `may_pass`: the same request may succeed later. `is_own`: the request is at fault."""

    def __init__(
        self, message: str, *, may_pass: bool, is_own: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.may_pass = may_pass
        self.is_own = is_own
        self.retry_after_s = retry_after_s


class Endpoint:
    def __init__(self, config: ModelConfig, timeout_s: float) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._client: AsyncOpenAI | None = None

    async def ask(self, messages: Sequence[Message]) -> AgentReply:
        """Raises RequestFailed."""
        import openai  # takes 0.5 s; only samplers that use an agent pay it

        if self._client is None:
            self._client = self.new_client(max_retries=0)
        try:
            # The client's own time-out restarts with every byte; this one does not.
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.chat.completions.with_raw_response.create(**self._request(messages))
        except (openai.APITimeoutError, TimeoutError) as exc:
            raise RequestFailed(f"no answer within {self._timeout_s:g} s", may_pass=True) from exc
        except openai.APIStatusError as exc:
            raise self._refused(exc) from exc
        except openai.APIConnectionError as exc:
            raise RequestFailed(self._quoted(f"connection failed: {exc.__cause__ or exc}"), may_pass=True) from exc
        except (LookupError, TypeError, ValueError) as exc:  # a `charset` such as "hex" is not a text encoding
            raise RequestFailed(self._quoted(f"the answer cannot be read: {exc}"), may_pass=True) from exc
        return self._read(text_of(response.http_response.content))

    def new_client(self, max_retries: int) -> "AsyncOpenAI":
        """A client that sends the endpoint its API key."""
        import openai

        return openai.AsyncOpenAI(
            api_key=self.key or NO_KEY,
            base_url=self.config.base_url,
            timeout=self._timeout_s,
            max_retries=max_retries,
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    @property
    def key(self) -> str | None:
        return self.config.api_key.get_secret_value() if self.config.api_key else None

    def _request(self, messages: Sequence[Message]) -> dict[str, Any]:
        config = self.config
        request: dict[str, Any] = {"model": config.model, "messages": list(messages)}
        if config.temperature is not None:
            request["temperature"] = config.temperature
        if config.max_tokens is not None:
            request["max_tokens"] = config.max_tokens
        return {**request, **({"extra_body": config.extra_body} if config.extra_body else {})}

    def _refused(self, exc: "APIStatusError") -> RequestFailed:
        status = exc.status_code
        return RequestFailed(
            self._quoted(f"status {status}: {text_of(exc.response.content)}") + self._advice(status),
            may_pass=status in _PASSING or status >= 500,
            is_own=status in _REQUESTS_OWN,
            retry_after_s=retry_after_s(exc.response.headers),
        )

    def _advice(self, status: int) -> str:
        base_url = self.config.base_url
        if status != 404 or _VERSION.search(urlsplit(base_url).path):
            return ""
        return f"; base_url {base_url} has no /v1: try {base_url}/v1"

    def _read(self, body: str) -> AgentReply:
        """Check everything that a reply with status 200 may lack: the client library checks nothing."""
        try:
            payload = json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise RequestFailed(self._quoted(f"the answer is not JSON: {body!r}"), may_pass=True) from exc
        try:
            choice = payload["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError) as exc:
            raise RequestFailed(
                self._quoted(f"the answer has no choices[0].message.content: {body}"), may_pass=True
            ) from exc
        text = storable(behind_reasoning(text).strip()) if isinstance(text, str) else ""
        if finish not in ("stop", "length", "eos", None):  # aborted or filtered: the text is incomplete
            raise RequestFailed(self._quoted(f"the answer ended by {finish!r}"), may_pass=True)
        if not text:
            raise RequestFailed(f"the answer has no text (it ended by {finish!r})", may_pass=True)
        usage = payload.get("usage")
        return AgentReply(text, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))

    def _quoted(self, text: str) -> str:
        """The text shortened, on one line, without the API key."""
        clean = text.replace(self.key, "***") if self.key else text
        line = " ".join(clean.split())
        return line if len(line) <= _MAX_TOLD_CHARS else line[: _MAX_TOLD_CHARS - 1] + "…"


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return (
        value if type(value) is int and 0 <= value < 2**53 else None
    )  # stored in MongoDB, which is limited to 64 bits
