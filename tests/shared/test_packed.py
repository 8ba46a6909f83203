"""Packed arrays round-trip bit for bit, also by the documented line of code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.documents.packed import pack_floats, pack_ints, unpack_floats, unpack_ints


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_come_back_as_they_were_and_as_numpy_reads_them(ids: list[int]) -> None:
    assert unpack_ints(pack_ints(ids)).tolist() == np.frombuffer(pack_ints(ids), "<i4").tolist() == ids


@given(st.lists(st.floats(width=32)))
def test_log_probs_come_back_bit_for_bit(values: list[float]) -> None:
    as_float32 = np.array(values, dtype=np.float32)
    assert unpack_floats(pack_floats(values)).tobytes() == as_float32.tobytes()
    assert np.frombuffer(pack_floats(values), "<f4").tobytes() == as_float32.tobytes()


def test_an_id_beyond_int32_is_an_error_and_not_another_id() -> None:
    with pytest.raises(OverflowError, match="2147483648"):
        pack_ints([1, 2**31])
