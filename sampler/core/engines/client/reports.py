"""An engine's reports about itself, checked on arrival: its weights' label, its start settings, its load.

Absent fields get defaults, since engines differ. A wrong type is EngineContractBroken, which names the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sampler.core.engines.client.fields import MAX_INT32, broken, listed, mapping, number, text, whole

MAX_LABEL_CHARS = 4096


RESERVED_OF_PROMPT = 6  # tokens between the context of SGLang and its longest prompt (tp_worker.py of 0.5.23)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """`weight_version`: the engine's label as it is; `default` until one is set."""

    model_path: str
    weight_version: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """None if the engine does not report it. `max_running_requests`: over all data-parallel ranks.

    `broadcast_ranks`: processes that take part in a weight broadcast; 0: not possible, as with data or pipeline parallelism.
    """

    max_running_requests: int | None
    version: str | None
    broadcast_ranks: int
    context: int | None = None  # tokens of a request with its reply
    dtype: str | None = None  # in which it computes; SGLang may say `auto`

    @property
    def kind(self) -> str:
        """`local`, `vllm`, or `sglang`, whose version is a plain number."""
        named = {"tandem-local": "local", "vllm": "vllm"}
        return next((kind for prefix, kind in named.items() if (self.version or "").startswith(prefix)), "sglang")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """`token_usage`: share of the KV cache in use at the fullest data-parallel rank."""

    running: int
    waiting: int
    token_usage: float


def read_model_info(where: str, report: Mapping[str, Any]) -> ModelInfo:
    return ModelInfo(
        _label(where, "model_path", report.get("model_path", "")),
        _label(where, "weight_version", report.get("weight_version", "default")),
    )


def read_server_info(where: str, report: Mapping[str, Any]) -> ServerInfo:
    ranks = _count(where, report, "tp_size")
    whole_model = report.get("dp_size") == 1 and report.get("pp_size", 1) == 1
    version = report.get("version")
    return ServerInfo(
        _max_running_requests(where, report),
        None if version is None else _label(where, "version", version),
        ranks if whole_model else 0,
        _context(where, report),
        None if report.get("dtype") is None else _label(where, "dtype", report["dtype"]),
    )


def read_load(where: str, report: Mapping[str, Any]) -> EngineLoad:
    """Summed over all data-parallel ranks."""
    loads = [] if report.get("loads") is None else listed(where, "loads", report["loads"])
    ranks = [mapping(where, f"loads[{at}]", rank) for at, rank in enumerate(loads)]
    usages = [number(where, "token_usage", rank.get("token_usage") or 0.0) for rank in ranks]
    return EngineLoad(
        running=sum(_count(where, rank, "num_running_reqs") for rank in ranks),
        waiting=sum(_count(where, rank, "num_waiting_reqs") for rank in ranks),
        token_usage=max(usages, default=0.0),
    )


def read_adapters(where: str, report: Mapping[str, Any]) -> set[str]:
    """The models that have a parent, which is the base."""
    cards = [mapping(where, f"data[{at}]", card) for at, card in enumerate(listed(where, "data", report.get("data")))]
    return {_label(where, "id", card.get("id")) for card in cards if card.get("parent")}


def _context(where: str, report: Mapping[str, Any]) -> int | None:
    """What it was started with, or what its cache holds: SGLang takes prompts of at most `max_req_input_len`, six fewer."""
    prompt = _count(where, report, "max_req_input_len")
    known = (_count(where, report, "context_length"), prompt and prompt + RESERVED_OF_PROMPT)
    return min((one for one in known if one), default=None)


def _max_running_requests(where: str, report: Mapping[str, Any]) -> int | None:
    """The engine's start setting, or else the sum of the ranks' own limits."""
    given = _count(where, report, "max_running_requests")
    if given:
        return given
    name = "effective_max_running_requests_per_dp"
    states = listed(where, "internal_states", report.get("internal_states") or [])
    ranks = [_count(where, mapping(where, f"internal_states[{at}]", state), name) for at, state in enumerate(states)]
    return sum(ranks) if ranks and all(ranks) else None


def _count(where: str, report: Mapping[str, Any], name: str) -> int:
    """0 if absent or null."""
    value = report.get(name)
    return 0 if value is None else whole(where, name, value, most=MAX_INT32)


def _label(where: str, name: str, value: object) -> str:
    label = text(where, name, value)
    if len(label) > MAX_LABEL_CHARS:
        raise broken(where, name, label, f"at most {MAX_LABEL_CHARS} characters")
    return label
