"""Builds a record's token tree from its dispatches, which store the sampled tokens once.

    dispatch 0   prompt_ids                          output        a chain
    dispatch 1   shared: all of 0 ─▶ prompt_ids      output        extends it
    dispatch 2   shared: part of 0 ─▶ prompt_ids     output        a branch

A turn that another policy's engine sampled is context: it has no loss. Every id and log-prob is copied from the dispatches;
nothing is encoded or decoded. An image of a dispatch's prompt keeps its place among the prompt's tokens, and routed experts their
places in the request. Settlement flattens to
count, and stores the tree's `digest` in the record's data; a reader of the data flattens again and must get the same tree, bit
for bit.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shared.documents import DataDispatch, DBRecordData, DispatchedSamplingTask, DispatchTokens
from shared.documents.images import PlacedImage
from shared.documents.packed import unpack_floats, unpack_ints
from shared.documents.routed_experts import RoutedExperts
from shared.documents.states import DispatchStatus
from shared.errors import DataError
from shared.tokens.expert_span import ExpertSpan
from shared.tokens.image_span import ImageSpan
from shared.tokens.record_tree import RecordTree, TreeDispatch
from shared.truncation import WHOLE, Truncation

AnyDispatch = DispatchedSamplingTask | DispatchTokens
DispatchT = TypeVar("DispatchT", bound=AnyDispatch)

# A request without an answer, or with a discarded answer, is not part of the tree.
UNANSWERED = {DispatchStatus.PENDING, DispatchStatus.RUNNING, DispatchStatus.FAILED}


def answered(dispatches: Sequence[DispatchT]) -> list[DispatchT]:
    """The dispatches that are in the record's tree."""
    return [d for d in dispatches if d.status not in UNANSWERED and d.response is not None]


def flatten(
    record_id: str,
    dispatches: Sequence[AnyDispatch],
    advantages: Mapping[str, float],
    *,
    trained: bool = True,
    context: Collection[str] = (),
) -> RecordTree:
    """Build the tree of a record's answered dispatches, each with its entry of `advantages`. Without `trained` none has a loss,
    and those of `context` have none.

    Raises DataError if the dispatches contradict each other, none was answered, or log-probs of a trained one are of another
    distribution than its tokens were drawn from.
    """
    in_tree = answered(dispatches)
    if not in_tree:
        raise DataError(f"record {record_id}: none of its {len(dispatches)} dispatches was answered")
    used = [
        TreeDispatch(
            d.id,
            d.turn,
            advantages[d.id],
            float(d.sampling_params["temperature"]),
            trained and d.sampled_by is None and d.id not in context,
            distribution_of_logprobs(d),
            _engines(d),
        )
        for d in in_tree
    ]
    tree = _tree(record_id, in_tree, used)
    _check_distributions(tree, in_tree)
    return tree


def distribution_of_logprobs(dispatch: AnyDispatch) -> Truncation:
    """What a reply's stored log-probs are of: what its tokens were drawn from, or the whole distribution, if the engine reports
    log-probs before truncation."""
    response = dispatch.response
    of_the_whole = response is not None and bool(response.output_ids) and not response.truncated_logprobs
    return WHOLE if of_the_whole else Truncation.of(dispatch.sampling_params)


def _check_distributions(tree: RecordTree, dispatches: Sequence[AnyDispatch]) -> None:
    for used, dispatch in zip(tree.dispatches, dispatches, strict=True):
        drawn_from = Truncation.of(dispatch.sampling_params)
        if used.trained and used.truncation != drawn_from:
            raise DataError(
                f"record {tree.record_id}, turn {used.turn}: its tokens were drawn from a truncated distribution ({drawn_from}), "
                f"its log-probs are of another ({used.truncation}); expected the same: an engine that reports them after "
                "truncation (local, vLLM)"
            )


def data_fields(tree: RecordTree) -> dict[str, Any]:
    """The fields of `DBRecordData` that describe `tree`."""
    trained_N = tree.trained_N
    versions = np.unique(tree.versions_N[trained_N]).tolist()
    return {
        "dispatches": [
            DataDispatch(
                id=d.id,
                turn=d.turn,
                advantage=d.advantage,
                temperature=d.temperature,
                trained=d.trained,
                truncation=d.truncation,
            )
            for d in tree.dispatches
        ],
        "digest": digest(tree),
        "num_tokens": tree.num_tokens,
        "num_trained_tokens": int(np.count_nonzero(trained_N)),
        "min_version": versions[0] if versions else -1,
        "max_version": versions[-1] if versions else -1,
        "versions": versions,
    }


def tree_of(data: DBRecordData, dispatches: Sequence[AnyDispatch]) -> RecordTree:
    """Rebuild the tree of `data` from its record's dispatches. Raises DataError if it differs from the tree at settlement."""
    by_id = {d.id: d for d in dispatches}
    gone = [d.id for d in data.dispatches if d.id not in by_id]
    if gone:
        raise DataError(f"record {data.id}: dispatch {gone[0]} does not exist, but its training data needs it")
    in_tree = [by_id[d.id] for d in data.dispatches]
    used = [
        TreeDispatch(d.id, d.turn, d.advantage, d.temperature, d.trained, d.truncation, _engines(of))
        for d, of in zip(data.dispatches, in_tree, strict=True)
    ]
    tree = _tree(data.id, in_tree, used)
    actual = digest(tree)
    if actual != data.digest:
        raise DataError(
            f"record {data.id}: the tokens of its dispatches have digest {actual}; expected {data.digest}, as at settlement. "
            "A dispatch was changed; none of its tokens may be trained"
        )
    _check_distributions(tree, in_tree)
    return tree


def _engines(dispatch: AnyDispatch) -> tuple[tuple[str, int | None], ...]:
    if dispatch.engines:
        return tuple(dispatch.engines)
    return () if dispatch.service is None else ((dispatch.service, None),)


def digest(tree: RecordTree) -> str:
    """16 hexadecimal digits of ids, structure, log-probs and versions, and of images and routed experts where there are some."""
    arrays = (tree.token_ids_N, tree.parents_N, tree.dispatches_N, tree.logprobs_N, tree.versions_N)
    checksum = hashlib.blake2b(digest_size=8)
    for array in arrays:
        checksum.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    for image in tree.images:
        checksum.update(f"{image.sha256}:{image.first}:{image.count}:{image.grid}\n".encode())
    for span in tree.experts:
        checksum.update(
            f"{span.stored.sha256}:{span.before}:{span.start}:{span.stored.count}:{span.stored.choices}\n".encode()
        )
    return checksum.hexdigest()


# ---------------------------------------------------------------------- chains


@dataclass(slots=True)
class _Chain:
    """The tokens that one dispatch adds below node `parent`. Nodes are numbered in order of creation, starting at `start`.

    `images`: of its prompt, each with its first token counted from `start`. `experts`: with the place of their first row
    counted from `start`; -1: it is the row of `parent`."""

    start: int
    parent: int
    token_ids: npt.NDArray[np.int32]
    num_prompt: int
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int32]
    images: Sequence[PlacedImage] = ()
    experts: tuple[RoutedExperts, int] | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class _Path:
    """The tokens of a dispatch and of what it shares: the first `num_shared` are those of `parent`, the others its chain's, from
    node `start` on. The node numbers are not written out: in every turn they would be as many as the episode's tokens."""

    parent: "_Path | None"
    num_shared: int
    start: int
    num_tokens: int

    def node(self, position: int) -> int:
        """-1: before the first token."""
        path: _Path | None = self
        while path is not None and position < path.num_shared:
            path = path.parent
        return -1 if path is None or position < 0 else path.start + position - path.num_shared


def _tree(record_id: str, in_tree: Sequence[AnyDispatch], used: Sequence[TreeDispatch]) -> RecordTree:
    paths: dict[str, _Path] = {}
    chains: list[_Chain] = []
    created = 0
    for dispatch in in_tree:
        parent = _parent(dispatch, paths)
        num_shared = 0 if parent is None else dispatch.shared_length
        chain = _chain(dispatch, created, -1 if parent is None else parent.node(num_shared - 1), num_shared)
        chains.append(chain)
        paths[dispatch.id] = _Path(parent, num_shared, chain.start, num_shared + len(chain.token_ids))
        created = chain.end
    return _assemble(record_id, chains, used)


def _parent(dispatch: AnyDispatch, paths: Mapping[str, _Path]) -> _Path | None:
    if dispatch.parent is None:
        return None
    parent = paths.get(dispatch.parent)
    if parent is None or not 0 <= dispatch.shared_length <= parent.num_tokens:
        actual = "no answered dispatch" if parent is None else f"{parent.num_tokens} tokens"
        raise DataError(
            f"dispatch {dispatch.id}: shares {dispatch.shared_length} tokens with {dispatch.parent}, which has {actual}"
        )
    return parent


def _chain(dispatch: AnyDispatch, start: int, parent: int, num_shared: int) -> _Chain:
    if dispatch.response is None:
        raise DataError(f"dispatch {dispatch.id}: has no reply, but its record's training data needs it")
    prompt = unpack_ints(dispatch.prompt_ids)
    output = unpack_ints(dispatch.response.output_ids)
    logprobs = unpack_floats(dispatch.response.output_logprobs)
    versions = np.repeat(
        np.array([v for v, _ in dispatch.weight_versions], dtype=np.int32),
        np.array([n for _, n in dispatch.weight_versions], dtype=np.int64),
    )
    if not len(output) == len(logprobs) == len(versions):
        raise DataError(
            f"dispatch {dispatch.id}: {len(logprobs)} log-probs and {len(versions)} weight versions for {len(output)} tokens"
        )
    if dispatch.engines and sum(count for _, count in dispatch.engines) != len(output):
        raise DataError(
            f"dispatch {dispatch.id}: engines {dispatch.engines} sampled other than its {len(output)} tokens"
        )
    for image in dispatch.images:
        _check_placed(dispatch.id, image, prompt)
    token_ids = np.concatenate([prompt, output])
    experts = _placed_experts(dispatch, num_shared, len(token_ids))
    return _Chain(start, parent, token_ids, len(prompt), logprobs, versions, images=dispatch.images, experts=experts)


def _placed_experts(dispatch: AnyDispatch, num_shared: int, num_new: int) -> tuple[RoutedExperts, int] | None:
    """Raises DataError for routed experts of tokens that the request does not add, its parent's last one aside."""
    experts = dispatch.routed_experts
    if experts is None:
        return None
    first, stop = experts.first - num_shared, experts.first - num_shared + experts.count
    if not (-1 if num_shared else 0) <= first < stop <= num_new:
        raise DataError(
            f"dispatch {dispatch.id}: routed experts of its tokens {experts.first} to {experts.first + experts.count - 1}; "
            f"expected some of {max(0, num_shared - 1)} to {num_shared + num_new - 1}"
        )
    return experts, first


def _check_placed(dispatch_id: str, image: PlacedImage, prompt: npt.NDArray[np.int32]) -> None:
    """Raises DataError for an image with a placeholder outside of the prompt. What else may be wrong, RecordTree refuses."""
    inside = 0 <= image.first < len(prompt)
    num_placeholders = np.count_nonzero(prompt[image.first :] == prompt[image.first]) if inside else 0
    if not 1 <= image.count <= num_placeholders:
        raise DataError(
            f"dispatch {dispatch_id}: image {image.sha256[:12]} has {image.count} placeholders from token {image.first} of its "
            f"prompt on; the prompt has {len(prompt)} tokens, with {num_placeholders} placeholders from there on"
        )


def _assemble(record_id: str, chains: Sequence[_Chain], used: Sequence[TreeDispatch]) -> RecordTree:
    total = chains[-1].end if chains else 0
    token_ids, logprobs = np.zeros(total, dtype=np.int32), np.zeros(total, dtype=np.float32)
    parents = np.arange(-1, total - 1, dtype=np.int32)
    dispatches, versions = np.full(total, -1, dtype=np.int32), np.full(total, -1, dtype=np.int32)
    moved = np.zeros(total, dtype=np.int32)  # creation number of a node ─▶ its position in the row
    place = 0
    images: list[ImageSpan] = []
    starts: dict[int, int] = {}
    for index in _depth_first(chains):
        chain = chains[index]
        end, sampled = place + len(chain.token_ids), slice(place + chain.num_prompt, place + len(chain.token_ids))
        moved[chain.start : chain.end] = np.arange(place, end)
        if end > place:
            parents[place] = -1 if chain.parent < 0 else moved[chain.parent]
        token_ids[place:end] = chain.token_ids
        dispatches[sampled], logprobs[sampled], versions[sampled] = index, chain.logprobs, chain.versions
        images += [ImageSpan(image.sha256, place + image.first, image.count, image.grid) for image in chain.images]
        starts[index] = place
        place = end
    experts = [
        ExpertSpan(chain.experts[0], int(moved[chain.parent]), starts[index])
        if chain.experts[1] < 0
        else ExpertSpan(chain.experts[0], -1, starts[index] + chain.experts[1])
        for index, chain in enumerate(chains)
        if chain.experts is not None
    ]
    arrays = (token_ids, parents, dispatches, logprobs, versions)
    try:
        return RecordTree(record_id, *arrays, tuple(used), tuple(images), tuple(experts))
    except ValueError as exc:  # the dispatches contradict each other
        raise DataError(str(exc)) from exc


def _depth_first(chains: Sequence[_Chain]) -> list[int]:
    """Chains in depth-first pre-order of their nodes, children in order of creation.

    A node's own chain precedes any branch from it, since branches are newer: so a chain is never split, and its branches
    follow in order from its end to its beginning.
    """
    children: dict[int, list[int]] = {}
    starts = np.array([c.start for c in chains])
    for index, chain in enumerate(chains):
        owner = -1 if chain.parent < 0 else int(np.searchsorted(starts, chain.parent, side="right")) - 1
        children.setdefault(owner, []).append(index)
    order, stack = [], children.get(-1, [])[::-1]
    while stack:
        index = stack.pop()
        order.append(index)
        stack.extend(sorted(children.get(index, []), key=lambda k: (-chains[k].parent, k), reverse=True))
    return order
