"""The log-probs of a prompt's tokens in a reply to `/generate`, checked once on arrival.

SGLang lists `[log-prob, token id, …]` from position `logprob_start_len` on; the first has no log-prob. It does not divide the
logits by the temperature here, so these are log-probs at temperature 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.engines.client.fields import broken, listed, mapping, number, shown
from sampler.core.engines.client.generation import ROUNDING_NATS, RequestBounds, read_generation
from sampler.core.errors import EngineContractBroken


@dataclass(frozen=True, slots=True)
class PromptScores:
    """One log-prob for each token after the position that was asked for. `version`: the weights that computed them."""

    logprobs: list[float]
    version: int


def read_prompt_scores(
    url: str, rid: str, answer: Mapping[str, Any], input_ids: Sequence[int], start: int
) -> PromptScores:
    """Raises EngineContractBroken, and what `read_generation` raises."""
    sampled = read_generation(url, rid, answer, RequestBounds(len(input_ids), 1))
    where = f"{url}: request {rid}"
    if len(sampled.version_runs) != 1:
        raise EngineContractBroken(
            f"{where}: {len(sampled.output_ids)} sampled tokens, finish reason {sampled.finish_reason}; expected one token: "
            "the request was ended, repeat it"
        )
    meta = mapping(where, "meta_info", answer.get("meta_info"))
    pairs = listed(where, "input_token_logprobs", meta.get("input_token_logprobs"))
    if len(pairs) != len(input_ids) - start:
        raise EngineContractBroken(
            f"{where}: {len(pairs)} input_token_logprobs; expected {len(input_ids) - start}, those from position {start} on"
        )
    logprobs = []
    for at, (pair, token) in enumerate(zip(pairs, input_ids[start:], strict=True)):
        if not isinstance(pair, list) or len(pair) < 2:
            raise broken(where, f"input_token_logprobs[{at}]", pair, "[log-prob, token id, …]")
        if type(pair[1]) is not int or pair[1] != token:
            raise EngineContractBroken(
                f"{where}: prompt log-prob {at} belongs to token {shown(pair[1])}, not to {token}"
            )
        if at == 0:
            continue  # of the position that was asked for
        if number(where, f"prompt log-prob {at}", pair[0]) > ROUNDING_NATS:
            raise broken(where, f"prompt log-prob {at}", pair[0], "at most 0")
        logprobs.append(float(pair[0]))
    return PromptScores(logprobs, sampled.version_runs[0][0])
