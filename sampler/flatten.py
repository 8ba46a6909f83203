"""From the dispatches of one record to its token tree: what `record_data` stores.

    dispatch 0   prompt_ids                          output        a chain
    dispatch 1   shared: all of 0 ─▶ prompt_ids      output        continues it
    dispatch 2   shared: part of 0 ─▶ prompt_ids     output        a branch

Every id is copied from the dispatches; nothing is encoded or decoded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.documents import DispatchedSamplingTask
from shared.errors import DataError
from shared.packed import unpack_floats, unpack_ints
from shared.states import DispatchStatus
from shared.trees import RecordTree, TreeDispatch

IntArray = npt.NDArray[np.int64]

# A request that got no answer, or whose answer was thrown away, is no part of the tree.
UNANSWERED = {DispatchStatus.PENDING, DispatchStatus.RUNNING, DispatchStatus.FAILED, DispatchStatus.DROPPED}


@dataclass(slots=True)
class _Chain:
    """The tokens that one dispatch adds, hanging on node `parent` of the tree in order of creation."""

    parent: int
    token_ids: IntArray
    dispatch: int
    num_prompt: int
    logprobs: npt.NDArray[np.float32]
    versions: IntArray


def answered(dispatches: Sequence[DispatchedSamplingTask]) -> list[DispatchedSamplingTask]:
    """Those of a record's dispatches that are in its tree."""
    return [d for d in dispatches if d.status not in UNANSWERED and d.response is not None]


def flatten(
    record_id: str,
    dispatches: Sequence[DispatchedSamplingTask],
    advantages: Mapping[str, float],
    *,
    trained: bool = True,
) -> RecordTree:
    """The tree of a record's answered dispatches, each with its entry of `advantages`. Without `trained` none has a loss.

    Raises DataError when the dispatches contradict each other, or none was answered.
    """
    in_tree = answered(dispatches)
    if not in_tree:
        raise DataError(f"record {record_id}: none of its {len(dispatches)} dispatches was answered")
    nodes_of: dict[str, IntArray] = {}
    chains: list[_Chain] = []
    created = 0
    for index, dispatch in enumerate(in_tree):
        shared = _shared_nodes(dispatch, nodes_of)
        chain = _chain(dispatch, index, int(shared[-1]) if len(shared) else -1)
        chains.append(chain)
        new = np.arange(created, created + len(chain.token_ids))
        nodes_of[dispatch.id] = np.concatenate([shared, new])
        created += len(new)
    return _assemble(
        record_id,
        chains,
        tuple(
            TreeDispatch(d.id, d.turn, advantages[d.id], float(d.sampling_params["temperature"]), trained)
            for d in in_tree
        ),
    )


def _shared_nodes(dispatch: DispatchedSamplingTask, nodes_of: dict[str, IntArray]) -> IntArray:
    if dispatch.parent is None:
        return np.zeros(0, dtype=np.int64)
    parent = nodes_of.get(dispatch.parent)
    if parent is None or dispatch.shared_length > len(parent):
        found = "no answered dispatch" if parent is None else f"{len(parent)} tokens"
        raise DataError(
            f"dispatch {dispatch.id}: shares {dispatch.shared_length} tokens with {dispatch.parent}, which has {found}"
        )
    return parent[: dispatch.shared_length]


def _chain(dispatch: DispatchedSamplingTask, index: int, parent: int) -> _Chain:
    assert dispatch.response is not None
    prompt = unpack_ints(dispatch.prompt_ids)
    output = unpack_ints(dispatch.response.output_ids)
    logprobs = unpack_floats(dispatch.response.output_logprobs)
    versions = np.repeat(
        np.array([v for v, _ in dispatch.weight_versions], dtype=np.int64),
        np.array([n for _, n in dispatch.weight_versions], dtype=np.int64),
    )
    if not len(output) == len(logprobs) == len(versions):
        raise DataError(
            f"dispatch {dispatch.id}: {len(logprobs)} log-probs and {len(versions)} weight versions for {len(output)} tokens"
        )
    return _Chain(parent, np.concatenate([prompt, output]), index, len(prompt), logprobs, versions)


def _assemble(record_id: str, chains: Sequence[_Chain], in_tree: tuple[TreeDispatch, ...]) -> RecordTree:
    token_ids = np.concatenate([c.token_ids for c in chains])
    total = len(token_ids)
    parents = np.arange(-1, total - 1, dtype=np.int64)
    sampled_by = np.full(total, -1, dtype=np.int32)
    logprobs = np.zeros(total, dtype=np.float32)
    versions = np.full(total, -1, dtype=np.int32)
    start = 0
    for chain in chains:
        first_output, end = start + chain.num_prompt, start + len(chain.token_ids)
        if end > start:
            parents[start] = chain.parent
        sampled_by[first_output:end] = chain.dispatch
        logprobs[first_output:end] = chain.logprobs
        versions[first_output:end] = chain.versions
        start = end
    order = _depth_first(parents)
    place = np.empty(total, dtype=np.int64)
    place[order] = np.arange(total)
    moved = parents[order]
    return RecordTree(
        record_id=record_id,
        token_ids_N=token_ids[order].astype(np.int32),
        parents_N=np.where(moved < 0, -1, place[moved]).astype(np.int32),
        dispatches_N=sampled_by[order],
        logprobs_N=logprobs[order],
        versions_N=versions[order],
        dispatches=in_tree,
    )


def _depth_first(parents: IntArray) -> IntArray:
    """Node indices in depth-first pre-order, children in order of creation. A chain is in that order already."""
    total = len(parents)
    if np.array_equal(parents, np.arange(-1, total - 1)):
        return np.arange(total)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents.tolist()):
        children.setdefault(parent, []).append(node)
    order, stack = [], children[-1][::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(children.get(node, [])[::-1])
    return np.array(order, dtype=np.int64)
