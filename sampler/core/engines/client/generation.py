"""One reply of an engine to `/generate`, checked once on arrival.

Promise: a `Generation` has one log-prob per output token; the log-probs belong to its ids; the ids are within the vocabulary,
and not more than requested; its log-probs are finite and at most 0; its version runs cover its tokens in order. Anything else
is EngineContractBroken, which names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sampler.core.engines.client.fields import MAX_INT32, broken, listed, mapping, number, shown, text, whole
from sampler.core.engines.client.refusals import LATER, MAX_MESSAGE_CHARS
from sampler.core.errors import EngineContractBroken, EngineRefused, EngineUnavailable
from shared.documents.run import FIRST_VERSION

if TYPE_CHECKING:
    from sampler.core.engines.client.routed_experts import Int32

FINISH_REASONS = ("stop", "length", "abort")
ROUNDING_NATS = 1e-3  # tolerance for log-probs above 0, from half-precision logits


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter that an engine has loaded over version 0. `version`: the policy version that the two are together."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Bounds of the reply to a request. None: unknown. `adapter`: the one that the request names."""

    prompt_tokens: int
    max_new_tokens: int | None = None
    vocabulary: int | None = None
    adapter: NamedAdapter | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply. `version_runs`: `[[weight version, number of tokens], …]`, in order, over all of `output_ids`."""

    url: str
    output_ids: list[int]
    logprobs: list[float]
    finish_reason: str  # "stop", "length" or "abort"
    matched: int | str | None  # the matched stop: a token id or a stop string
    version_runs: list[list[int]]
    prompt_tokens: int
    cached_tokens: int
    abort_message: str = ""
    truncated_logprobs: bool = (
        False  # of the distribution after top_p, top_k and min_p; False: before, or there were none
    )
    experts: "Int32 | None" = field(default=None, compare=False)  # [tokens, choices], if they were asked for


def read_generation(url: str, rid: str, answer: Mapping[str, Any], bounds: RequestBounds) -> Generation:
    """Raises EngineContractBroken; for an abort with a status, EngineUnavailable or EngineRefused."""
    where = f"{url}: request {rid}"
    meta = mapping(where, "meta_info", answer.get("meta_info"))
    reason = mapping(where, "finish_reason", meta.get("finish_reason"))
    kind = reason.get("type")
    if kind not in FINISH_REASONS:
        raise broken(where, "finish_reason.type", kind, "stop, length or abort")
    _refuse_failed_abort(where, kind, reason)
    output_ids = _ids(where, answer.get("output_ids"), bounds)
    message = reason.get("message")
    return Generation(
        url=url,
        output_ids=output_ids,
        logprobs=_logprobs(where, meta.get("output_token_logprobs"), output_ids),
        finish_reason=kind,
        matched=_matched(where, reason.get("matched")),
        version_runs=_of_adapter(where, _version_runs(where, meta, len(output_ids)), bounds.adapter),
        # Both are missing in a request that was aborted while waiting.
        prompt_tokens=whole(where, "prompt_tokens", meta.get("prompt_tokens", bounds.prompt_tokens)),
        cached_tokens=whole(where, "cached_tokens", meta.get("cached_tokens") or 0),
        abort_message="" if kind != "abort" or message is None else text(where, "message", message)[:MAX_MESSAGE_CHARS],
        truncated_logprobs=meta.get("truncated_logprobs") is True,  # of our engines' API; SGLang has no such field
    )


def _refuse_failed_abort(where: str, kind: str, reason: Mapping[str, Any]) -> None:
    """An abort with a status is an error despite HTTP 200: a full queue, an internal fault."""
    if kind != "abort" or reason.get("status_code") is None:
        return
    status = whole(where, "finish_reason.status_code", reason["status_code"], most=999)
    message = f"{where}: aborted with status {status}: {shown(reason.get('message'))}"
    raise EngineUnavailable(message) if status >= 500 or status in LATER else EngineRefused(message)


def _ids(where: str, value: object, bounds: RequestBounds) -> list[int]:
    ids = listed(where, "output_ids", value)
    if bounds.max_new_tokens is not None and len(ids) > bounds.max_new_tokens:
        raise EngineContractBroken(f"{where}: {len(ids)} output_ids; expected at most {bounds.max_new_tokens} as asked")
    most = MAX_INT32 if bounds.vocabulary is None else bounds.vocabulary - 1
    for at, token in enumerate(ids):
        if type(token) is not int or not 0 <= token <= most:
            raise broken(where, f"output_ids[{at}]", token, f"a token of the vocabulary, 0 to {most}")
    return ids


def _logprobs(where: str, value: object, output_ids: list[int]) -> list[float]:
    """The log-probs of pairs (log-prob, id, …), one per token."""
    pairs = listed(where, "output_token_logprobs", [] if value is None and not output_ids else value)
    if len(pairs) != len(output_ids):
        raise EngineContractBroken(f"{where}: {len(pairs)} log-probs for {len(output_ids)} tokens")
    logprobs = []
    for at, (pair, token) in enumerate(zip(pairs, output_ids, strict=True)):
        if not isinstance(pair, list) or len(pair) < 2:
            raise broken(where, f"output_token_logprobs[{at}]", pair, "[log-prob, token id, …]")
        logprob, scored = pair[0], pair[1]
        if type(scored) is not int or scored != token:
            raise EngineContractBroken(f"{where}: log-prob {at} belongs to token {shown(scored)}, output is {token}")
        if number(where, f"log-prob {at}", logprob) > ROUNDING_NATS:
            raise broken(where, f"log-prob {at}", logprob, "at most 0")
        logprobs.append(float(logprob))
    return logprobs


def _matched(where: str, value: object) -> int | str | None:
    if value is None or isinstance(value, str) or type(value) is int:
        return value
    raise broken(where, "finish_reason.matched", value, "a token id, a text or null")


def _version_runs(where: str, meta: Mapping[str, Any], n_tokens: int) -> list[list[int]]:
    reported = meta.get("weight_versions")
    if reported is None:
        reported = [{"version": meta.get("weight_version"), "start": 0, "end": n_tokens}]
    runs: list[list[int]] = []
    reached = 0
    for at, each in enumerate(listed(where, "weight_versions", reported)):
        run = mapping(where, f"weight_versions[{at}]", each)
        start = whole(where, f"weight_versions[{at}].start", run.get("start"))
        end = whole(where, f"weight_versions[{at}].end", run.get("end"))
        if start != reached or end < reached:
            raise EngineContractBroken(
                f"{where}: weight version runs {shown(reported)} do not cover {n_tokens} tokens in order"
            )
        if end > reached:
            append_run(runs, _version(where, run.get("version")), end - reached)
        reached = end
    if reached != n_tokens:
        raise EngineContractBroken(
            f"{where}: weight version runs {shown(reported)} cover {reached} of {n_tokens} tokens"
        )
    return runs


def _of_adapter(where: str, runs: list[list[int]], adapter: NamedAdapter | None) -> list[list[int]]:
    """The runs by the adapter's version: an engine labels tokens with the version of its base."""
    if adapter is None:
        return runs
    if other := [version for version, _ in runs if version != FIRST_VERSION]:
        raise EngineContractBroken(
            f"{where}: adapter {adapter.name} belongs to version {FIRST_VERSION}, and the engine's base was version {other[0]}"
        )
    return [[adapter.version, sum(count for _, count in runs)]] if runs else []


def append_run(runs: list[list[int]], version: int, n_tokens: int) -> None:
    """Append a run of tokens to `[[version, n_tokens], …]`, merging it with a last run of the same version."""
    if runs and runs[-1][0] == version:
        runs[-1][1] += n_tokens
    else:
        runs.append([version, n_tokens])


def _version(where: str, label: object) -> int:
    if isinstance(label, str) and label.isascii() and label.isdigit() and len(label) <= 10 and int(label) <= MAX_INT32:
        return int(label)
    raise EngineContractBroken(
        f'{where}: weight version is {shown(label)}; expected a whole number as text, such as "0" or "12". '
        "Run a keeper (`python -m sampler.engine.keeper`) for the engine, which labels the weights, or start SGLang with "
        "--weight-version 0"
    )
