"""One sequence being generated: its request and its output so far.

Created in `protocol` (validated), changed only by its engine, read by the HTTP side once `finish` is set (for a stream, up to a
length that is known to be complete).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_TOP_K = 1 << 30  # SGLang's value for "all of the vocabulary"

Decode = Callable[[list[int], bool], str]  # (token ids, skip_special_tokens) -> text


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
    others: Mapping[str, Any] = field(
        default_factory=dict
    )  # under SGLang's names, of those that the engine alone knows

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
class ServedSequence:
    """`prompt` token ids in, `output` and `logprobs` (one each per token, stop token included) out.

    `limit`: number of output tokens at which the context or `max_new_tokens` ends it. `stop_ids`: ids that end it (empty with
    `ignore_eos`, as in SGLang).
    """

    rid: str
    prompt: list[int]
    params: SamplingParams
    limit: int
    stop_ids: frozenset[int]
    return_logprob: bool = False
    stream: bool = False
    adapter: str | None = None  # the name of a loaded one; None: the base alone
    logprob_start: int | None = None  # log-probs of the prompt are wanted from this position on; None: of no token
    images: tuple[bytes, ...] = ()  # one file for each image token of the prompt, in order
    return_prompt: bool = False  # whether the answer has the token ids that the model has read
    experts_start: int | None = None  # the experts of tokens are wanted from this position on; None: of no token
    notify: Callable[[], None] | None = None  # called on the event loop, when finished or (stream) at an event

    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    read_ids: list[int] | None = None  # the prompt with its images as tokens; None: `prompt`, or not known yet
    prompt_logprobs: list[float] = field(default_factory=list)  # of `prompt[logprob_start + 1 :]`, at temperature 1
    experts: list[bytes] = field(default_factory=list)  # int32 [tokens, layers, experts of a token]
    finish: dict[str, Any] | None = None
    cached_tokens: int | None = None  # None until first admitted
    retractions: int = 0
    weight_version: str = ""  # the engine's version when it finished
    runs: list[tuple[str, int]] = field(default_factory=list)  # (version, index of its first output token)
    received_at: float = field(default_factory=time.perf_counter)
    finished_at: float = 0.0

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


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can serve. `encode`: its tokenizer's. `sequence`: what it makes of a request.

    `name`: in messages. `sampling`: parameters that it supports beyond those of every engine.
    """

    context_length: int
    vocab_size: int
    eos_ids: frozenset[int]
    encode: Callable[[str], list[int]]
    sequence: type[ServedSequence] = ServedSequence
    name: str = "the local engine"
    sampling: frozenset[str] = frozenset()
    adapters: bool = False  # whether requests may name one
    images: int = 0  # the most of one prompt; 0: the model reads none
    experts: bool = False  # whether the engine says which experts computed a token
