"""One request between the two: a served sequence as vLLM's sampling parameters, and vLLM's outputs as its tokens."""

from __future__ import annotations

import json
from typing import Any

from vllm import RequestOutput, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from sampler.engine.api.generation import NO_TOP_K, ServedSequence

# SGLang's parameters that vLLM has too, beyond those of every engine.
SUPPORTED = frozenset(
    ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens", "json_schema", "regex", "ebnf")
)
_RENAMED = {"min_new_tokens": "min_tokens"}
_GRAMMARS = {"json_schema": "json", "regex": "regex", "ebnf": "grammar"}
INTERVAL = 8  # tokens in each output of vLLM for a request that is not streamed


def params_of(g: ServedSequence) -> SamplingParams:
    """Raises ValueError for what vLLM refuses."""
    p = g.params
    others = {_RENAMED.get(name, name): value for name, value in p.others.items() if name not in _GRAMMARS}
    grammar = {_GRAMMARS[name]: value for name, value in p.others.items() if name in _GRAMMARS}
    if "json" in grammar:
        grammar["json"] = json.loads(grammar["json"])
    return SamplingParams(
        max_tokens=g.limit,
        temperature=0.0 if p.greedy else p.temperature,
        top_p=p.top_p,
        top_k=0 if p.greedy or p.top_k >= NO_TOP_K else p.top_k,
        min_p=0.0 if p.greedy else p.min_p,
        seed=p.sampling_seed,
        stop=list(p.stop) or None,
        include_stop_str_in_output=True,
        stop_token_ids=sorted(g.stop_ids),
        ignore_eos=True,  # the ends of sequence are among `stop_ids`, unless the request ignores them
        skip_special_tokens=p.skip_special_tokens,
        detokenize=bool(p.stop),
        logprobs=0,
        prompt_logprobs=None if g.logprob_start is None else 0,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=p.stream_interval if g.stream else INTERVAL,
        structured_outputs=StructuredOutputsParams(**grammar) if grammar else None,
        **others,
    )


def take(g: ServedSequence, found: RequestOutput) -> None:
    """Append what is new in `found`; at the end also its versions and the reason for the end."""
    (part,) = found.outputs
    ids = list(part.token_ids)
    g.output += ids
    g.logprobs += [entry[token].logprob for entry, token in zip(part.logprobs or (), ids, strict=True)] if ids else []
    if g.images and g.read_ids is None and found.prompt_token_ids is not None:
        g.read_ids = list(found.prompt_token_ids)
    if g.cached_tokens is None:
        g.cached_tokens = found.num_cached_tokens or 0
    if found.prompt_logprobs and g.logprob_start is not None and not g.prompt_logprobs:
        start = g.logprob_start + 1
        scored = zip(found.prompt_logprobs[start:], (g.read_ids or g.prompt)[start:], strict=True)
        g.prompt_logprobs = [_logprob(entry, token) for entry, token in scored]
    if found.finished:
        g.runs = [(span.version, span.start) for span in part.weight_versions or ()] or g.runs
        g.finish = _reason(g, part)


def _logprob(entry: Any, token: int) -> float:
    return float(entry[token].logprob)


def _reason(g: ServedSequence, part: Any) -> dict[str, Any]:
    if part.finish_reason == "stop":
        matched = part.stop_reason if part.stop_reason is not None else g.output[-1]
        return {"type": "stop", "matched": matched}
    if part.finish_reason == "length":
        return {"type": "length", "length": len(g.output)}
    return aborted("Aborted" if part.finish_reason == "abort" else f"vLLM ended it: {part.finish_reason}")


def aborted(message: str, status: int | None = None) -> dict[str, Any]:
    """`status`: of an error, as SGLang says it in an answer of HTTP 200."""
    return {"type": "abort", "message": message[:500], "status_code": status, "err_type": None}
