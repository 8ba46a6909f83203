"""Sampling parameters as in SGLang: names, defaults, order of the checks, and error messages."""

from __future__ import annotations

import json
import math
from typing import Any

from sampler.engine.api.errors import bad_type, bad_value
from sampler.engine.api.generation import NO_TOP_K, Limits, SamplingParams

MAX_N = 1024

# SGLang's names, in the order of its message, with the type in its message; "-": refused.
_FIELDS: dict[str, str] = {
    "max_new_tokens": "i64", "stop": "stop", "stop_token_ids": "ids", "stop_regex": "-", "temperature": "f64",
    "top_p": "f64", "top_k": "i64", "min_p": "f64", "frequency_penalty": "f64", "presence_penalty": "f64",
    "repetition_penalty": "f64", "min_new_tokens": "i64", "n": "i64", "json_schema": "str", "regex": "str", "ebnf": "str",
    "structural_tag": "-", "ignore_eos": "bool", "skip_special_tokens": "bool", "spaces_between_special_tokens": "bool",
    "no_stop_trim": "bool", "stream_interval": "i64", "logit_bias": "-", "sampling_seed": "i64", "custom_params": "-",
    "beam_width": "-", "watermark": "-", "choice": "-",
}  # fmt: skip
# With these values alone where an engine does not support them: a client that sends every field changes nothing by them.
_NEUTRAL: dict[str, object] = {
    "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0, "no_stop_trim": False,
    "spaces_between_special_tokens": True,
}  # fmt: skip
_GRAMMARS = ("json_schema", "regex", "ebnf")


def parse_sampling(raw: object, limits: Limits) -> tuple[SamplingParams, int]:
    """Sampling parameters and `n`."""
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise bad_type(f"invalid type: {_describe(raw)}, expected sampling_params as an object")
    given = {name: value for name, value in raw.items() if value is not None}
    for name, value in given.items():
        _check_type(name, value, limits)
    for name, neutral in _NEUTRAL.items():
        if name not in limits.sampling and given.get(name, neutral) != neutral:
            raise bad_value(f"{name} is not supported by {limits.name}; leave it at {neutral}, got {given[name]}.")
    stop = given.get("stop", ())
    params = SamplingParams(
        max_new_tokens=given.get("max_new_tokens", None if "max_new_tokens" in raw else 128),
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        top_k=given.get("top_k", -1),
        min_p=float(given.get("min_p", 0.0)),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(given.get("stop_token_ids", ())),
        stream_interval=max(1, given.get("stream_interval", 1)),  # SGLang takes 0 and less for 1 too
        **{key: given[key] for key in ("ignore_eos", "skip_special_tokens", "sampling_seed") if key in given},
        others={name: value for name, value in given.items() if name in limits.sampling},
    )
    n = given.get("n", 1)
    if not 1 <= n <= MAX_N:
        raise bad_value(f"n must be between 1 and {MAX_N}, got {n}.")
    return _normalized(params, given), n


def _check_type(name: str, value: object, limits: Limits) -> None:
    kind = _FIELDS.get(name)
    if kind is None:
        listed = ", ".join(f"`{known}`" for known in _FIELDS)
        raise bad_type(f"unknown field `{name}`, expected one of {listed}")
    if kind == "-" or (name in _GRAMMARS and name not in limits.sampling):
        raise bad_value(f"{name} is not supported by {limits.name}; use SGLang for it.")
    if not _fits(kind, value):
        expected = {"stop": "a string or a list of strings", "ids": "a list of i64", "str": "a string"}.get(kind, kind)
        raise bad_type(f"invalid type: {_describe(value)}, expected {expected}")


def _fits(kind: str, value: object) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "i64":
        return isinstance(value, int)
    if kind == "f64":
        return isinstance(value, int | float)
    if isinstance(value, str):
        return kind in ("stop", "str")
    item = {"stop": str, "ids": int}.get(kind, type(None))
    return isinstance(value, list) and all(isinstance(one, item) and not isinstance(one, bool) for one in value)


def _describe(value: object) -> str:
    words = {str: "string", bool: "boolean", int: "integer", float: "floating point", list: "sequence", dict: "map"}
    shown = json.dumps(value) if isinstance(value, str) else f"`{value}`"
    return f"{words.get(type(value), type(value).__name__)} {shown}"[:200]


def _normalized(p: SamplingParams, given: dict[str, Any]) -> SamplingParams:
    """Check values in SGLang's order and words; temperature 0 becomes greedy at temperature 1, as there."""
    if not (math.isfinite(p.temperature) and p.temperature >= 0):
        raise bad_value(f"temperature must be a non-negative finite number, got {given['temperature']}.")
    if not 0 < p.top_p <= 1:
        raise bad_value(f"top_p must be in (0, 1], got {given['top_p']}.")
    if not 0 <= p.min_p <= 1:
        raise bad_value(f"min_p must be in [0, 1], got {given['min_p']}.")
    if p.top_k != -1 and p.top_k < 1:
        raise bad_value(f"top_k must be -1 (disable) or at least 1, got {p.top_k}.")
    if p.max_new_tokens is not None and p.max_new_tokens < 0:
        raise bad_value(f"max_new_tokens must be at least 0, got {p.max_new_tokens}.")
    greedy = p.temperature < 1e-6
    top_k = 1 if greedy else (NO_TOP_K if p.top_k == -1 else p.top_k)
    return SamplingParams(
        p.max_new_tokens, 1.0 if greedy else p.temperature, p.top_p, top_k, p.min_p, tuple(s for s in p.stop if s),
        p.stop_token_ids, p.ignore_eos, p.skip_special_tokens, p.sampling_seed, p.stream_interval, p.others,
    )  # fmt: skip
