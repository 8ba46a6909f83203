"""SGLang's native HTTP API: one request, one checked answer, and its four shapes of 400 in one error tree.

Owns the process's connections to engines. Promise: every returned reply was checked field by field (`generation.py`,
`reports.py`, with `fields.py`), and any other reply of an engine is one of our `EngineError`s, with a bounded message.
Nothing here retries: `sampler.core.engines.pool.engine_pool` does.

Behaviour of the engine that callers should know (SGLang 0.5.23, measured): log-probs are those of `log_softmax(logits / T)`
before top-p and top-k; `output_ids` include the stop token; the engine notices a closed connection only after about 4 s, so
abort unwanted requests; `abort` also aborts every request whose id *begins* with the given one, if that one is known.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import httpx

from sampler.core.engines.client.fields import shown
from sampler.core.engines.client.generation import Generation, NamedAdapter, RequestBounds, read_generation
from sampler.core.engines.client.prompt_images import PromptImage, image_request, require_read
from sampler.core.engines.client.prompt_scores import PromptScores, read_prompt_scores
from sampler.core.engines.client.refusals import error_text, refusal
from sampler.core.engines.client.reports import (
    EngineLoad,
    ModelInfo,
    ServerInfo,
    read_adapters,
    read_load,
    read_model_info,
    read_server_info,
)
from sampler.core.engines.client.routed_experts import experts_request, read_experts
from sampler.core.engines.client.streamed import OnIds, StreamedAnswer, interval_of
from sampler.core.engines.client.transport import KeepAliveTransport, OnPart
from sampler.core.errors import EngineContractBroken, EngineRefused, EngineUnavailable
from shared.outside_text import text_of
from shared.tokens.encoded_ids import EncodedIds


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """Seconds. `generate_s` bounds one whole generation, since the reply is sent only when finished."""

    connect_s: float = 5.0
    generate_s: float = 900.0
    control_s: float = 30.0
    update_s: float = 600.0


# 24 methods: one for each of the engine's routes that is used
class EngineClient:
    """Any number of engines through one connection pool. `transport`: replaced in tests."""

    def __init__(
        self,
        timeouts: EngineTimeouts | None = None,
        api_key: str | None = None,
        max_connections: int = 1024,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.timeouts = timeouts or EngineTimeouts()
        # uvicorn closes idle connections after 5 s; reusing one at that moment would cause an unnecessary transport error.
        self._transport = transport or KeepAliveTransport(max_connections, 2.0, self.timeouts.connect_s)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._urls: dict[tuple[str, str], httpx.URL] = {}  # parsing a URL takes longer than sending a request to it
        self._tokens_per_s: dict[str, float] = {}  # of the newest stream of each engine, from its request to its end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.aclose()

    # 10 parameters: the engine's own request; six are optional
    async def generate(
        self,
        url: str,
        input_ids: Sequence[int] | EncodedIds,
        sampling_params: Mapping[str, Any],
        rid: str,
        timeout_s: float | None = None,
        *,
        vocabulary: int | None = None,
        on_ids: OnIds | None = None,
        adapter: NamedAdapter | None = None,
        images: Sequence[PromptImage] = (),
        experts_from: int | None = None,
    ) -> Generation:
        """One generation with log-probs. `rid` must be unique, and not a prefix of another one in flight.

        `adapter`: a loaded one, by which the engine samples; all output ids are of its version. Raises AdapterNotLoaded.
        `vocabulary`: size of the model's vocabulary, if known. `on_ids` hears the output ids while they are sampled.
        `images`: in the order of their tokens. Raises EngineContractBroken where the engine reads other tokens for them.
        `experts_from`: position of the first token whose experts are wanted; None: of no token.
        """
        if not input_ids:
            raise EngineRefused(f"{url}: request {rid} has no input ids")
        ids = EncodedIds.of(input_ids)
        body: dict[str, Any] = {
            "rid": rid,
            "input_ids": ids,
            "sampling_params": dict(sampling_params),
            "return_logprob": True,
        }
        if images:
            body |= image_request(ids.ids, images)
        if adapter is not None:
            body["lora_path"] = adapter.name
        if experts_from is not None:  # an engine that reads images counts other positions before it has read them
            body |= experts_request(0 if images else experts_from)
        most, limit_s = sampling_params.get("max_new_tokens"), timeout_s or self.timeouts.generate_s
        if on_ids is None:
            answer = await self._json(url, "POST", "/generate", limit_s, body)
        else:
            interval, began = interval_of(most, self._tokens_per_s.get(url, 0.0)), time.monotonic()
            body |= {"stream": True, "sampling_params": {**sampling_params, "stream_interval": interval}}
            streamed = StreamedAnswer(on_ids)
            response = await self._send(url, "POST", "/generate", limit_s, body, streamed.feed)
            answer = streamed.whole(f"{url}/generate", response)
        bounds = RequestBounds(len(input_ids), None if most is None else int(most), vocabulary, adapter)
        reply = read_generation(url, rid, answer, bounds)
        if images:
            require_read(f"{url}: request {rid}", answer, ids.ids)
        if experts_from is not None and reply.output_ids:
            rows, skipped = len(input_ids) + len(reply.output_ids) - 1 - experts_from, experts_from if images else 0
            experts = read_experts(f"{url}: request {rid}", answer, rows, skipped=skipped)
            reply = replace(reply, experts=experts)
        if on_ids is not None:
            self._tokens_per_s[url] = len(reply.output_ids) / max(1e-3, time.monotonic() - began)
        return reply

    async def score_prompt(self, url: str, input_ids: Sequence[int], start: int, rid: str) -> PromptScores:
        """Log-probs, at temperature 1, of the tokens after position `start`; nothing of them is sampled."""
        if not 0 <= start < len(input_ids):
            raise EngineRefused(f"{url}: request {rid} starts at {start} of {len(input_ids)} input ids")
        body: dict[str, Any] = {
            "rid": rid,
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        answer = await self._json(url, "POST", "/generate", self.timeouts.generate_s, body)
        return read_prompt_scores(url, rid, answer, input_ids, start)

    async def abort(self, url: str, rid: str) -> None:
        """End request `rid`, and those whose id begins with it; an unknown id is not an error."""
        await self._send(url, "POST", "/abort_request", self.timeouts.control_s, {"rid": rid})

    async def model_info(self, url: str) -> ModelInfo:
        path = "/model_info"
        return read_model_info(url + path, await self._json(url, "GET", path, self.timeouts.control_s))

    async def server_info(self, url: str) -> ServerInfo:
        path = "/server_info"
        return read_server_info(url + path, await self._json(url, "GET", path, self.timeouts.control_s))

    async def load(self, url: str) -> EngineLoad:
        """Number of running and waiting requests."""
        path = "/v1/loads"
        return read_load(url + path, await self._json(url, "GET", path, self.timeouts.control_s))

    async def pause(self, url: str, mode: str = "retract") -> None:
        """`retract` keeps requests and recomputes their cache afterwards; `abort` ends them with their partial output.

        `in_place` keeps a stale KV cache: log-probs after an update are off by up to 6.7. Not for training.
        """
        await self._send(url, "POST", "/pause_generation", self.timeouts.control_s, {"mode": mode})

    async def resume(self, url: str) -> None:
        await self._send(url, "POST", "/continue_generation", self.timeouts.control_s, {})

    async def update_weights_from_disk(self, url: str, model_path: str, weight_version: int) -> None:
        """Load weights and label them. Raises CacheNotFlushed if they are live but the cache is stale.

        Check the files first: a truncated file or a wrong shape crashes the server.
        """
        body = {"model_path": model_path, "weight_version": str(weight_version), "flush_cache": True}
        await self.change_weights(url, "/update_weights_from_disk", body)

    async def change_weights(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        """Call one of the weight routes. Raises EngineRefused with the engine's message, CacheNotFlushed."""
        await self._change(url, path, body)

    async def load_adapter(self, url: str, name: str, path: str) -> None:
        """Load a LoRA of PEFT's form under `name`. Raises EngineRefused, also if the name is taken."""
        await self._change(url, "/load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def unload_adapter(self, url: str, name: str) -> None:
        """No new request gets it; returns once those that hold it have ended. Raises EngineRefused."""
        await self._change(url, "/unload_lora_adapter", {"lora_name": name})

    async def adapters(self, url: str) -> set[str]:
        """The names that requests may give."""
        path = "/v1/models"
        return read_adapters(url + path, await self._json(url, "GET", path, self.timeouts.control_s))

    async def _change(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        answer = await self._json(url, "POST", path, self.timeouts.update_s, body)
        if answer.get("success") is not True:
            raise EngineRefused(f"{url}{path}: {error_text(json.dumps(answer))}")

    async def flush_cache(self, url: str) -> None:
        """Raises EngineRefused while requests are running or waiting: pause with mode `retract` first."""
        await self._send(url, "POST", "/flush_cache", self.timeouts.control_s, {})

    async def release_memory(self, url: str) -> None:
        """Release the weights' memory and the cache's. SGLang crashes while requests hold the cache: pause and flush first."""
        await self._send(url, "POST", "/release_memory_occupation", self.timeouts.update_s, {})

    async def resume_memory(self, url: str) -> None:
        """Allocate it again; the weights have no values until the next update. SGLang crashes if nothing was released."""
        await self._send(url, "POST", "/resume_memory_occupation", self.timeouts.update_s, {})

    async def _json(
        self, url: str, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        response = await self._send(url, method, path, timeout_s, body)
        try:
            content = response.json()
        except (ValueError, RecursionError) as exc:
            raise EngineContractBroken(f"{url}{path}: answer is not JSON: {shown(text_of(response.content))}") from exc
        if not isinstance(content, dict):
            raise EngineContractBroken(f"{url}{path}: answer is {type(content).__name__}; expected a JSON object")
        return content

    async def _send(
        self,
        url: str,
        method: str,
        path: str,
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
        on_part: OnPart | None = None,
    ) -> httpx.Response:
        """One exchange; every error of the HTTP library is translated here."""
        extensions = {} if on_part is None else {"on_part": on_part}
        try:
            request = httpx.Request(
                method, self._url(url, path), headers=self._headers, content=_encoded(body), extensions=extensions
            )
            async with asyncio.timeout(timeout_s):
                response = await self._transport.handle_async_request(request)
                await response.aread()
        except httpx.ConnectTimeout as exc:
            raise EngineUnavailable(
                f"{url}{path}: {exc}: expected an engine at an address that this machine reaches"
            ) from exc
        except (TimeoutError, httpx.TimeoutException) as exc:
            raise EngineUnavailable(f"{url}{path}: no answer within {timeout_s:g} s ({type(exc).__name__})") from exc
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
            raise EngineRefused(f"{url!r} is not a URL: {exc}; expected something like http://host:30000") from exc
        except httpx.HTTPError as exc:
            raise EngineUnavailable(f"{url}{path}: {type(exc).__name__}: {exc}") from exc
        if response.is_success:
            return response
        raise refusal(url + path, response)

    def _url(self, url: str, path: str) -> httpx.URL:
        """Raises httpx.InvalidURL."""
        if (url, path) not in self._urls:
            self._urls[url, path] = httpx.URL(url.rstrip("/") + path)
        return self._urls[url, path]


def _encoded(body: Mapping[str, Any] | None) -> bytes:
    if body is None:
        return b""
    ids = body.get("input_ids")
    if not isinstance(ids, EncodedIds):
        return json.dumps(body, separators=(",", ":")).encode()
    rest = json.dumps({name: value for name, value in body.items() if value is not ids}, separators=(",", ":"))
    return b'%s,"input_ids":[%s]}' % (rest[:-1].encode(), ids.text)
