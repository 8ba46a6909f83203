"""Streamed replies of `/generate`: every split into parts gives the whole reply, and none is kept without a bound."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.core.engines.client import streamed
from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.streamed import MAX_EVENTS, StreamedAnswer, interval_of
from sampler.core.errors import EngineContractBroken

EVENTS: list[dict[str, Any]] = [
    {"output_ids": list(range(n)), "meta_info": {"completion_tokens": n}} for n in range(1, 6)
]
LONG: dict[str, Any] = {
    "output_ids": [7] * 500,
    "meta_info": {
        "finish_reason": {"type": "stop", "matched": 7},
        "prompt_tokens": 1,
        "completion_tokens": 500,
        "weight_version": "0",
        "output_token_logprobs": [[-1.0, 7, None]] * 500,
    },
}
WHOLE = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in EVENTS) + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, len(WHOLE)), max_size=40))
def test_a_stream_in_any_parts_ends_with_its_last_event(cuts: list[int]) -> None:
    heard: list[list[int]] = []
    answer = StreamedAnswer(lambda ids: heard.append(list(ids)))
    bounds = [0, *sorted(cuts), len(WHOLE)]
    for begin, end in itertools.pairwise(bounds):
        answer.feed(WHOLE[begin:end])
    assert answer.whole("engine", httpx.Response(200)) == EVENTS[-1]
    assert all(ids == list(range(len(ids))) for ids in heard), "each has everything so far"


def test_an_event_without_an_end_is_not_kept_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "MAX_BODY_BYTES", 1000)
    answer = StreamedAnswer(lambda ids: None)
    answer.feed(WHOLE * 100)  # many bytes, but events
    for _ in range(10):
        answer.feed(b"x" * 100)
    with pytest.raises(ValueError, match="without an end within 1000 bytes"):
        answer.feed(b"x" * 100)


def test_a_stream_that_ends_in_the_middle_of_an_event_is_no_reply() -> None:
    answer = StreamedAnswer(lambda ids: None)
    answer.feed(b'data: {"output_ids": [1')
    with pytest.raises(EngineContractBroken, match="expected JSON"):
        answer.whole("engine", httpx.Response(200))


def test_an_engine_is_asked_for_at_most_so_many_events_of_a_reply() -> None:
    for most in (1, 127, 128, 129, 255, 500, 4096, 100_000):
        assert -(-most // interval_of(most)) <= MAX_EVENTS
    found = {most: interval_of(most) for most in (None, 1, 32, 33, 500, 1024, 4096, 32_768)}
    assert found == {None: 1, 1: 1, 32: 1, 33: 2, 500: 16, 1024: 32, 4096: 32, 32_768: 256}


async def test_a_fast_engine_is_asked_for_fewer_events() -> None:
    """Each event wakes the process. A slow engine's text comes as it is sampled."""
    asked: list[int] = []

    async def engine(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["sampling_params"]["stream_interval"])
        await asyncio.sleep(0.5 if request.url.host == "slow" else 0)  # what makes it slow
        return httpx.Response(200, content=b"data: " + json.dumps(LONG).encode() + b"\n\ndata: [DONE]\n\n")

    async with EngineClient(transport=httpx.MockTransport(engine)) as client:
        for host in ("fast", "fast", "slow", "slow"):
            sampling = {"max_new_tokens": 500, "temperature": 1.0}
            await client.generate(f"http://{host}", [1], sampling, f"r{len(asked)}", on_ids=lambda ids: None)
    assert asked[0] == asked[2] == interval_of(500)
    assert asked[1] > 1000
    assert 50 < asked[3] <= 200, "at most 1,000 tokens in a second, and an event in a fifth of it"


def test_the_last_event_is_not_heard() -> None:
    """The whole reply is told at once, when it is written."""
    heard: list[list[int]] = []
    answer = StreamedAnswer(lambda ids: heard.append(list(ids)))
    answer.feed(b"data: " + json.dumps(LONG).encode() + b"\n\n")
    assert heard == []
    assert answer.whole("engine", httpx.Response(200)) == LONG
