"""A reply that several engines sampled names each one's tokens, in their order and without a gap."""

import pytest

from sampler.core.engines.client.generation import Generation
from sampler.core.engines.pool.progress import Continuation, EngineReply

A, B = "http://a:1", "http://b:1"


@pytest.mark.parametrize(
    ("cuts", "last", "tokens", "expected"),
    [
        ([], A, 5, []),
        ([(A, 2)], A, 5, []),
        ([(A, 2)], B, 5, [(A, 2), (B, 3)]),
        ([(A, 2), (A, 1), (B, 0)], B, 5, [(A, 3), (B, 2)]),
        ([(A, 2), (B, 1)], A, 5, [(A, 2), (B, 1), (A, 2)]),
        ([(A, 0)], B, 5, []),  # nothing was kept of the first
        ([(A, 5)], B, 5, []),  # the second stopped at once
    ],
)
def test_the_engines_of_a_reply(
    cuts: list[tuple[str, int]], last: str, tokens: int, expected: list[tuple[str, int]]
) -> None:
    generation = Generation(
        url=last,
        output_ids=list(range(tokens)),
        logprobs=[-1.0] * tokens,
        version_runs=[[0, tokens]],
        finish_reason="stop",
        matched=None,
        prompt_tokens=1,
        cached_tokens=0,
    )
    reply = EngineReply(generation, tuple(Continuation(url, n, "Aborted") for url, n in cuts), 0, 1.0)
    assert reply.engines == expected
