"""SGLang's native HTTP API: one request, one checked answer, and its four shapes of 400 in one error tree.

Owns the process's connections to engines. Promise: a `Generation` that leaves this file has one finite log-prob per
output token, its ids are those the log-probs belong to, and its version runs cover all of them; anything else is an
`EngineContractBroken`. Nothing here retries: `sampler.engine.pool` does.

What the engine does and a caller should know (SGLang 0.5.23, measured): log-probs are those of `log_softmax(logits / T)`
before top-p and top-k; `output_ids` include the stop token; a client that hangs up is noticed only after about 4 s, so
abort what you no longer want; `abort` also aborts every request whose id *begins* with the given one, if that one is known.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from sampler.engine.refusals import LATER, refusal
from sampler.engine.transport import KeepAliveTransport
from sampler.errors import EngineContractBroken, EngineRefused, EngineUnavailable


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """Seconds. `generate_s` bounds one whole generation, since nothing is sent before it is finished."""

    connect_s: float = 5.0
    generate_s: float = 900.0
    control_s: float = 30.0
    update_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer. `version_runs`: `[[weight version, number of tokens], …]`, in order, over all of `output_ids`."""

    url: str
    output_ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", "length" or "abort"
    matched: int | str | None  # what stopped it: a token id or a stop string
    version_runs: list[list[int]]
    prompt_tokens: int
    cached_tokens: int
    abort_message: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`weight_version` is the engine's label as it stands; `default` until someone sets one."""

    model_path: str
    weight_version: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """None where the engine does not say. `max_running_requests`: over all data-parallel ranks.

    `broadcast_ranks`: processes that take part in a broadcast of weights; 0: none can, as with data or pipeline parallelism.
    """

    max_running_requests: int | None
    version: str | None
    broadcast_ranks: int


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """`token_usage`: share of the KV cache in use, of the fullest data-parallel rank."""

    running: int
    waiting: int
    token_usage: float


class EngineClient:
    """Any number of engines through one connection pool. `transport` is httpx's seam for tests."""

    def __init__(
        self,
        timeouts: EngineTimeouts | None = None,
        api_key: str | None = None,
        max_connections: int = 1024,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.timeouts = timeouts or EngineTimeouts()
        # uvicorn closes idle connections after 5 s; one reused in that instant would be a needless transport error.
        self._transport = transport or KeepAliveTransport(max_connections, 2.0, self.timeouts.connect_s)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._urls: dict[tuple[str, str], httpx.URL] = {}  # parsing one takes longer than sending a request to it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.aclose()

    async def generate(
        self,
        url: str,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        rid: str,
        timeout_s: float | None = None,
    ) -> Generation:
        """One generation with log-probs. `rid` must be unique, and no prefix of another one in flight."""
        if not input_ids:
            raise EngineRefused(f"{url}: request {rid} has no input ids")
        body = {
            "rid": rid,
            "input_ids": list(input_ids),
            "sampling_params": dict(sampling_params),
            "return_logprob": True,
        }
        answer = await self._json(url, "POST", "/generate", timeout_s or self.timeouts.generate_s, body)
        return _generation(url, rid, answer, len(input_ids))

    async def abort(self, url: str, rid: str) -> None:
        """End request `rid`, and those whose id begins with it; an unknown one is no error."""
        await self._send(url, "POST", "/abort_request", self.timeouts.control_s, {"rid": rid})

    async def model_info(self, url: str) -> ModelInfo:
        found = await self._json(url, "GET", "/model_info", self.timeouts.control_s)
        return ModelInfo(str(found.get("model_path", "")), str(found.get("weight_version", "default")))

    async def server_info(self, url: str) -> ServerInfo:
        found = await self._json(url, "GET", "/server_info", self.timeouts.control_s)
        whole = found.get("dp_size") == 1 and found.get("pp_size", 1) == 1
        return ServerInfo(
            _max_running_requests(found), found.get("version"), int(found.get("tp_size") or 0) if whole else 0
        )

    async def load(self, url: str) -> EngineLoad:
        """Requests running and waiting now, over all data-parallel ranks."""
        found = await self._json(url, "GET", "/v1/loads", self.timeouts.control_s)
        ranks = found.get("loads") or []
        return EngineLoad(
            running=sum(int(rank.get("num_running_reqs", 0)) for rank in ranks),
            waiting=sum(int(rank.get("num_waiting_reqs", 0)) for rank in ranks),
            token_usage=max((float(rank.get("token_usage") or 0.0) for rank in ranks), default=0.0),
        )

    async def pause(self, url: str, mode: str = "retract") -> None:
        """`retract` keeps requests and recomputes their cache afterwards; `abort` answers them as they are.

        `in_place` keeps a stale KV cache: log-probs after an update are off by up to 6.7. Not for training.
        """
        await self._send(url, "POST", "/pause_generation", self.timeouts.control_s, {"mode": mode})

    async def resume(self, url: str) -> None:
        await self._send(url, "POST", "/continue_generation", self.timeouts.control_s, {})

    async def update_weights_from_disk(self, url: str, model_path: str, weight_version: int) -> None:
        """Load weights and label them. Raises CacheNotFlushed where they are live but the cache is stale.

        Check the files first: a truncated file or a wrong shape ends the server's process.
        """
        body = {"model_path": model_path, "weight_version": str(weight_version), "flush_cache": True}
        await self.change_weights(url, "/update_weights_from_disk", body)

    async def change_weights(self, url: str, path: str, body: Mapping[str, Any]) -> None:
        """One of the routes that have to do with weights. Raises EngineRefused with the engine's message, CacheNotFlushed."""
        answer = await self._json(url, "POST", path, self.timeouts.update_s, body)
        if answer.get("success") is not True:
            raise EngineRefused(f"{url}{path}: {answer.get('message', answer)}")

    async def flush_cache(self, url: str) -> None:
        """Raises EngineRefused while requests are running or waiting: pause with mode `retract` first."""
        await self._send(url, "POST", "/flush_cache", self.timeouts.control_s, {})

    async def _json(
        self, url: str, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        response = await self._send(url, method, path, timeout_s, body)
        try:
            found = response.json()
        except ValueError as exc:
            raise EngineContractBroken(f"{url}{path}: answer is not JSON: {response.text[:200]!r}") from exc
        if not isinstance(found, dict):
            raise EngineContractBroken(f"{url}{path}: answer is {type(found).__name__}; expected a JSON object")
        return found

    async def _send(
        self, url: str, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        """One exchange; every foreign error becomes one of ours here."""
        try:
            request = httpx.Request(method, self._url(url, path), headers=self._headers, content=_encoded(body))
            async with asyncio.timeout(timeout_s):
                response = await self._transport.handle_async_request(request)
                await response.aread()
        except (TimeoutError, httpx.TimeoutException) as exc:
            raise EngineUnavailable(f"{url}{path}: no answer within {timeout_s:g} s ({type(exc).__name__})") from exc
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
            raise EngineRefused(f"{url!r} is no URL: {exc}; expected something like http://host:30000") from exc
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
    return b"" if body is None else json.dumps(body, separators=(",", ":")).encode()


def _max_running_requests(found: Mapping[str, Any]) -> int | None:
    """What the engine was told at its start, or else what each rank made of its memory."""
    if given := found.get("max_running_requests"):
        return int(given)
    ranks = [state.get("effective_max_running_requests_per_dp") for state in found.get("internal_states") or []]
    return sum(map(int, ranks)) if ranks and all(ranks) else None


def _generation(url: str, rid: str, answer: Mapping[str, Any], prompt_tokens: int) -> Generation:
    """Check everything once, where the numbers are born."""
    where = f"{url}: request {rid}"
    try:
        meta = answer["meta_info"]
        reason = meta["finish_reason"]
        pairs = meta["output_token_logprobs"]
        output_ids = [int(token) for token in answer["output_ids"]]
        logprobs = [float(pair[0]) for pair in pairs]
        scored_ids = [int(pair[1]) for pair in pairs]
        kind = str(reason["type"])
        # Both are missing in a request that was aborted while it waited.
        prompt_tokens, cached_tokens = (
            int(meta.get("prompt_tokens", prompt_tokens)),
            int(meta.get("cached_tokens") or 0),
        )
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise EngineContractBroken(f"{where}: answer lacks what training needs ({type(exc).__name__}: {exc})") from exc
    _refuse_failed_abort(where, kind, reason)
    if len(logprobs) != len(output_ids):
        raise EngineContractBroken(f"{where}: {len(logprobs)} log-probs for {len(output_ids)} tokens")
    if scored_ids != output_ids:
        at = next(i for i, (a, b) in enumerate(zip(scored_ids, output_ids, strict=True)) if a != b)
        raise EngineContractBroken(
            f"{where}: log-prob {at} belongs to token {scored_ids[at]}, output is {output_ids[at]}"
        )
    if not all(map(math.isfinite, logprobs)):
        raise EngineContractBroken(f"{where}: a log-prob is not finite")
    return Generation(
        url=url,
        output_ids=output_ids,
        logprobs=logprobs,
        finish_reason=kind,
        matched=reason.get("matched"),
        version_runs=_version_runs(where, meta, len(output_ids)),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        abort_message=str(reason.get("message", "")) if kind == "abort" else "",
    )


def _refuse_failed_abort(where: str, kind: str, reason: Mapping[str, Any]) -> None:
    """An abort that carries a status is an error in disguise (HTTP 200): a full queue, an internal fault."""
    if kind not in ("stop", "length", "abort"):
        raise EngineContractBroken(f"{where}: finish reason {kind!r}; expected stop, length or abort")
    status = reason.get("status_code")
    if kind == "abort" and status is not None:
        message = f"{where}: aborted with status {status}: {reason.get('message')}"
        raise EngineUnavailable(message) if int(status) >= 500 or int(status) in LATER else EngineRefused(message)


def _version_runs(where: str, meta: Mapping[str, Any], n_tokens: int) -> list[list[int]]:
    found = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": n_tokens}]
    runs: list[list[int]] = []
    reached = 0
    for run in found:
        if run["start"] != reached or run["end"] < reached:
            raise EngineContractBroken(f"{where}: weight version runs {found} do not cover {n_tokens} tokens in order")
        if run["end"] > reached:
            append_run(runs, _version(where, run["version"]), run["end"] - reached)
        reached = run["end"]
    if reached != n_tokens:
        raise EngineContractBroken(f"{where}: weight version runs {found} cover {reached} of {n_tokens} tokens")
    return runs


def append_run(runs: list[list[int]], version: int, n_tokens: int) -> None:
    """Add a run of tokens to `[[version, n_tokens], …]`, joining it to the last one of the same version."""
    if runs and runs[-1][0] == version:
        runs[-1][1] += n_tokens
    else:
        runs.append([version, n_tokens])


def _version(where: str, label: object) -> int:
    if isinstance(label, str) and label.isascii() and label.isdigit():
        return int(label)
    raise EngineContractBroken(
        f'{where}: weight version is {label!r}; expected a whole number as text, such as "0" or "12". '
        "Run a keeper (`python -m sampler.engine.keeper`) beside the engine, which labels the weights, or start SGLang with "
        "--weight-version 0"
    )
