"""Prompts' ids with their JSON: what was encoded before is not encoded again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tokens import encoded_ids
from shared.tokens.encoded_ids import NO_IDS, EncodedIds

PIECES = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=6)


@given(PIECES)
def test_the_text_is_the_json_of_the_ids_however_they_grew(pieces: list[list[int]]) -> None:
    ids: list[int] = []
    grown, then = NO_IDS, NO_IDS
    for piece in pieces:
        ids = [*ids, *piece]
        grown, then = grown.grown_to(ids), then.then(piece)
    for one in (grown, then, EncodedIds.of(ids), EncodedIds.of(EncodedIds.of(ids))):
        assert json.loads(b"[%s]" % one.text) == list(one.ids) == ids


def test_each_id_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, count = encoded_ids.to_json, 0

    def counted(ids: list[int]) -> Any:
        nonlocal count
        count += len(ids)
        return encode(ids)

    monkeypatch.setattr(encoded_ids, "to_json", counted)
    prompt, ids = NO_IDS, list[int]()
    for turn in range(100):
        ids = [*ids, *range(turn, turn + 50)]
        prompt = prompt.grown_to(ids)
    assert count == len(ids) == 5000
