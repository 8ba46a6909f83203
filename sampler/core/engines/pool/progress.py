"""What has been sampled of one reply so far, over the engines that sampled parts of it."""

from dataclasses import dataclass, field

from sampler.core.engines.client.generation import Generation, append_run
from sampler.core.engines.client.streamed import OnIds


@dataclass(frozen=True, slots=True)
class Continuation:
    """A cut in a reply: `n_tokens` sampled by `url` were kept when it aborted, for `cause`."""

    url: str
    n_tokens: int
    cause: str


@dataclass(slots=True)
class Progress:
    """One reply in progress."""

    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_runs: list[list[int]] = field(default_factory=list)
    continuations: list[Continuation] = field(default_factory=list)
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
