"""Streamed replies of `/generate`: every split into parts gives the whole reply, and none is kept without a bound."""

import itertools
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampler.engine.client import streamed
from sampler.engine.client.streamed import MAX_EVENTS, StreamedAnswer, interval_of
from sampler.errors import EngineContractBroken

EVENTS: list[dict[str, Any]] = [
    {"output_ids": list(range(n)), "meta_info": {"completion_tokens": n}} for n in range(1, 6)
]
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
