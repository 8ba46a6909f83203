"""What is stored of a tree comes back bit for bit, and takes 4 bytes a token and 4 a sampled one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.packed import pack_tree, unpack_tree


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_tree_comes_back_as_it_was(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    parents = [data.draw(st.sampled_from([i - 1, i - 1, i - 1, data.draw(st.integers(-1, i - 1))])) for i in range(n)]
    dispatches = [data.draw(st.integers(-1, 2)) for _ in range(n)]
    arrays = (
        np.array(data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)), dtype=np.int32),
        np.array(parents, dtype=np.int32),
        np.array(dispatches, dtype=np.int32),
        np.array([-0.1 * (i + 1) if d >= 0 else 0.0 for i, d in enumerate(dispatches)], dtype=np.float32),
        np.array([data.draw(st.integers(0, 3)) if d >= 0 else -1 for d in dispatches], dtype=np.int32),
    )
    for before, after in zip(arrays, unpack_tree(**pack_tree(*arrays)), strict=True):
        assert before.dtype == after.dtype
        assert before.tobytes() == after.tobytes()


def test_a_long_reply_takes_eight_bytes_a_token() -> None:
    n = 100_000
    sampled = np.arange(n) >= 100
    fields = pack_tree(
        np.arange(n, dtype=np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.where(sampled, 0, -1).astype(np.int32),
        np.where(sampled, -0.5, 0).astype(np.float32),
        np.where(sampled, 7, -1).astype(np.int32),
    )
    assert sum(map(len, fields.values())) == 4 * n + 4 * (n - 100) + 2 * 16


@pytest.mark.parametrize("field", ["token_ids", "runs", "logprobs"])
def test_fields_that_contradict_each_other_are_an_error(field: str) -> None:
    one = np.ones(2, dtype=np.int32)
    fields = pack_tree(one, np.array([-1, 0], np.int32), np.array([-1, 0], np.int32), one.astype(np.float32), one)
    with pytest.raises(ValueError, match="tokens"):
        unpack_tree(**{**fields, field: b""})
