"""Token arrays as MongoDB binaries: little-endian int32 and float32, 4 bytes an entry (BSON lists take 13 to 26).

A token tree takes 4 bytes a token and 4 more for each sampled one. What hardly changes from token to token (the parent is
the token before, the same dispatch sampled it under the same weights) is stored as runs:

    runs        int32 rows (first token, its parent, dispatch, version); the tokens after the first follow one another
    logprobs    of the sampled tokens only, in order
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TreeArrays = tuple[
    npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.int32]
]


def pack_ints(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """int32 little-endian. Raises OverflowError for a value outside int32."""
    array = np.asarray(values, dtype=np.int64)
    if array.size and (array.max() > np.iinfo(np.int32).max or array.min() < np.iinfo(np.int32).min):
        raise OverflowError(f"value outside int32 among {array.size} token ids")
    return array.astype("<i4").tobytes()


def unpack_ints(data: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def pack_floats(values: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    """float32 little-endian; what the engine computed in float32 comes back bit for bit."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(data: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def pack_tree(
    token_ids_N: npt.NDArray[np.int32],
    parents_N: npt.NDArray[np.int32],
    dispatches_N: npt.NDArray[np.int32],
    logprobs_N: npt.NDArray[np.float32],
    versions_N: npt.NDArray[np.int32],
) -> dict[str, bytes]:
    """The stored fields `token_ids`, `runs` and `logprobs` of a tree's arrays; see `shared.trees`."""
    n = len(token_ids_N)
    starts_N = parents_N != np.arange(-1, n - 1)
    starts_N[1:] |= (np.diff(dispatches_N) != 0) | (np.diff(versions_N) != 0)
    starts_N[:1] = True
    starts = np.flatnonzero(starts_N)
    runs = np.stack([starts, parents_N[starts], dispatches_N[starts], versions_N[starts]], axis=1)
    return {
        "token_ids": pack_ints(token_ids_N),
        "runs": pack_ints(runs.ravel()),
        "logprobs": pack_floats(logprobs_N[dispatches_N >= 0]),
    }


def unpack_tree(token_ids: bytes, runs: bytes, logprobs: bytes) -> TreeArrays:
    """(token ids, parents, dispatches, log-probs, versions), one entry per token: the inverse of `pack_tree`.

    Raises ValueError where the fields contradict each other.
    """
    token_ids_N = unpack_ints(token_ids)
    n = len(token_ids_N)
    rows = unpack_ints(runs)
    if len(rows) % 4 or (len(rows) == 0) != (n == 0):
        raise ValueError(f"{len(rows)} numbers in the runs of {n} tokens; expected rows of 4")
    starts, run_parents, run_dispatches, run_versions = rows.reshape(-1, 4).T
    lengths = np.diff(np.append(starts, n))
    if n and (starts[0] != 0 or (lengths <= 0).any()):
        raise ValueError(f"runs that begin at {starts[:8].tolist()} … do not cover {n} tokens in order")
    parents_N = np.arange(-1, n - 1, dtype=np.int32)
    parents_N[starts] = run_parents
    dispatches_N = np.repeat(run_dispatches, lengths)
    sampled_N = dispatches_N >= 0
    values = unpack_floats(logprobs)
    if len(values) != np.count_nonzero(sampled_N):
        raise ValueError(f"{len(values)} log-probs for {np.count_nonzero(sampled_N)} sampled tokens")
    logprobs_N = np.zeros(n, dtype=np.float32)
    logprobs_N[sampled_N] = values
    return token_ids_N, parents_N, dispatches_N, logprobs_N, np.repeat(run_versions, lengths)
