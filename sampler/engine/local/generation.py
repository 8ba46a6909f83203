"""One sequence being generated: its request, its output so far, and its KV cache slot.

Created in `protocol` (validated), changed only by the scheduler's thread, read by the HTTP side once `finish` is set (for a
stream, up to a length that is known to be complete).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNSEEDED = random.Random()
NO_TOP_K = 1 << 30  # SGLang's value for "all of the vocabulary"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated sampling parameters. `max_new_tokens` None: up to the context length. `top_k` 1: greedy."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = NO_TOP_K
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    sampling_seed: int | None = None
    stream_interval: int = 1

    @property
    def greedy(self) -> bool:
        return self.top_k == 1

    def streamed_at(self, count: int) -> bool:
        """True if a stream has an event at this number of tokens: at the first, then every `stream_interval`."""
        return (count - 1) % self.stream_interval == 0

    @property
    def filtered(self) -> bool:
        """True if sampling uses a truncated distribution."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k < NO_TOP_K or self.min_p > 0.0)


@dataclass(slots=True, eq=False)
class RunningSequence:
    """`prompt` token ids in, `output` and `logprobs` (one each per token, stop token included) out.

    `limit`: number of output tokens at which the context or `max_new_tokens` ends it. `stop_ids`: ids that end it (empty with
    `ignore_eos`, as in SGLang). `context`: tokens that must be in the KV cache before the next one can be sampled; after a
    retraction it is prompt + partial output.
    """

    rid: str
    prompt: list[int]
    params: SamplingParams
    limit: int
    stop_ids: frozenset[int]
    return_logprob: bool = False
    stream: bool = False
    logprob_start: int | None = None  # log-probs of the prompt are wanted from this position on; None: of no token
    notify: Callable[[], None] | None = None  # called on the event loop, when finished or (stream) at an event

    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)  # of `prompt[logprob_start + 1 :]`, at temperature 1
    finish: dict[str, Any] | None = None
    cached_tokens: int | None = None  # None until first admitted
    retractions: int = 0
    weight_version: str = ""  # the engine's version when it finished
    runs: list[tuple[str, int]] = field(default_factory=list)  # (version, index of its first output token)
    received_at: float = field(default_factory=time.perf_counter)
    finished_at: float = 0.0

    context: NDArray[np.int32] = field(init=False)
    slot: int = -1
    computed: int = 0  # tokens of `context` whose KV is in the slot
    decoding: bool = False
    kv_stale: bool = False  # its KV outlived a weight update (pause in_place, flush_cache false): never shared
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.context = np.asarray(self.prompt, dtype=np.int32)
        self.rng = _UNSEEDED if self.params.sampling_seed is None else random.Random(self.params.sampling_seed)

    @property
    def kv_length(self) -> int:
        """Tokens whose KV is in the slot; the last sampled token's is written by the next step."""
        return len(self.prompt) + len(self.output) - 1 if self.decoding else self.computed

    @property
    def shareable(self) -> int:
        """Leading tokens of `context` whose KV another sequence may have computed: the logits of the others are needed."""
        most = len(self.context) - 1
        return most if self.logprob_start is None else min(most, self.logprob_start)

    def scored_by(self, take: int) -> range:
        """Of the next `take` tokens of `context`, the positions whose logits say a log-prob of the prompt that is wanted."""
        if self.logprob_start is None:
            return range(0)
        first = self.logprob_start + len(self.prompt_logprobs)
        return range(max(first, self.computed), min(self.computed + take, len(self.prompt) - 1))

    def tokens(self) -> NDArray[np.int32]:
        return np.asarray(self.prompt + self.output, dtype=np.int32)

    def enter_version(self, version: str) -> None:
        """From the next output token on, tokens belong to `version`."""
        start = len(self.output)
        if self.runs and self.runs[-1][1] == start:
            self.runs.pop()
        if not self.runs or self.runs[-1][0] != version:
            self.runs.append((version, start))

    def weight_versions(self, count: int | None = None) -> list[dict[str, Any]]:
        """Runs of output tokens by version, as SGLang writes them."""
        count = len(self.output) if count is None else count
        starts = [(version, start) for version, start in self.runs if start < count] or self.runs[:1]
        ends = [start for _, start in starts[1:]] + [count]
        return [
            {"version": version, "start": start, "end": end} for (version, start), end in zip(starts, ends, strict=True)
        ]
