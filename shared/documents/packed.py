"""Token arrays as MongoDB binaries: little-endian int32 and float32, 4 bytes an entry (BSON lists take 13 to 26).

They are not compressed: sampled data hardly shrinks (a log-prob keeps 3.2 of its 4 bytes, an id of 152,000 keeps 2),
and uncompressed arrays can be read with one line, also from a dump:

    numpy.frombuffer(document["response"]["output_ids"], "<i4")          "output_logprobs": "<f4"
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def pack_ints(values: Sequence[int]) -> bytes:
    """int32 little-endian. Raises OverflowError for a Python int outside int32; values of a NumPy array would wrap."""
    return np.array(values, dtype="<i4").tobytes()


def unpack_ints(data: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def pack_floats(values: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    """float32 little-endian; float32 values round-trip bit for bit."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(data: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
