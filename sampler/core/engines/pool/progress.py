"""One reply over the engines that sampled parts of it: in progress, and whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

from sampler.core.engines.client.generation import Generation, append_run
from sampler.core.engines.client.streamed import OnIds
from sampler.core.errors import EngineContractBroken

if TYPE_CHECKING:
    from sampler.core.engines.client.routed_experts import Int32


@dataclass(frozen=True, slots=True)
class Continuation:
    """A cut in a reply: `n_tokens` sampled by `url` were kept when it aborted, for `cause`."""

    url: str
    n_tokens: int
    cause: str


@dataclass(frozen=True, slots=True)
class EngineReply:
    """A whole reply. `generation.url` is the service that finished it: the affinity for the episode's next request."""

    generation: Generation
    continuations: tuple[Continuation, ...]
    failures: int
    duration_s: float

    @property
    def engines(self) -> list[tuple[str, int]]:
        """(URL, tokens) in the reply's order, if several engines sampled it; []: `generation.url` alone did."""
        before = [(cut.url, cut.n_tokens) for cut in self.continuations]
        last = (self.generation.url, len(self.generation.output_ids) - sum(n_tokens for _, n_tokens in before))
        parts = [part for part in (*before, last) if part[1]]
        runs = [(url, sum(n_tokens for _, n_tokens in run)) for url, run in groupby(parts, key=lambda part: part[0])]
        return runs if len(runs) > 1 else []


@dataclass(slots=True)
class Progress:
    """One reply in progress. `experts_from`: position of the first token whose experts no part has said; None: they are not asked
    for."""

    experts_from: int | None = None
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_runs: list[list[int]] = field(default_factory=list)
    continuations: list[Continuation] = field(default_factory=list)
    experts: "list[Int32]" = field(default_factory=list)
    failures: int = 0
    whole_logprobs: bool = False  # some part's log-probs are not of a truncated distribution

    def listener_for(self, on_ids: OnIds | None) -> OnIds | None:
        return None if on_ids is None else lambda ids: on_ids([*self.output_ids, *ids])

    def add(self, part: Generation) -> None:
        self.output_ids += part.output_ids
        self.logprobs += part.logprobs
        self.whole_logprobs |= bool(part.output_ids) and not part.truncated_logprobs
        for version, n_tokens in part.version_runs:
            append_run(self.version_runs, version, n_tokens)

        if part.experts is not None and self.experts_from is not None:
            self._add_experts(part.url, part.experts)

    def _add_experts(self, url: str, experts: "Int32") -> None:
        """Raises EngineContractBroken for an engine with another model than the one before."""
        if self.experts and self.experts[0].shape[1] != experts.shape[1]:
            raise EngineContractBroken(
                f"{url}: {experts.shape[1]} routed experts of a token; expected {self.experts[0].shape[1]}, as "
                "the engine before said of the same reply: one model, and engines of one kind"
            )
        self.experts.append(experts)
        self.experts_from = (self.experts_from or 0) + len(experts)

    def reply(self, last: Generation, prompt_tokens: int, duration_s: float) -> EngineReply:
        """`last`: the part that ended it."""
        whole = replace(
            last,
            output_ids=self.output_ids,
            logprobs=self.logprobs,
            version_runs=self.version_runs,
            finish_reason="length" if last.finish_reason == "abort" else last.finish_reason,
            prompt_tokens=prompt_tokens,
            cached_tokens=min(last.cached_tokens, prompt_tokens),
            truncated_logprobs=bool(self.output_ids) and not self.whole_logprobs,
            experts=_joined(self.experts),
        )
        return EngineReply(whole, tuple(self.continuations), self.failures, duration_s)


def _joined(parts: "Sequence[Int32]") -> "Int32 | None":
    if not parts:
        return None
    import numpy as np

    return np.concatenate(parts)
