"""The digest of a record's token tree, computed from its dispatches' bytes without the code that settlement and trainer use.

    chain of a dispatch   its prompt_ids, then its reply; it hangs below a token of its parent's row, or is a root
    order of the tokens   a chain, then the chains below its tokens, those of its last token first; of one token in their order
    digest                of token ids, parents, dispatches, log-probs and versions, as `DBRecordData.digest` has it

A tree with the digest of settlement is the one that the trainer builds, and every path in it is a prompt and its reply by
construction. Unusual data has no digest and is compared token by token (`tokens.py`).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from shared.documents import DBRecordData, DispatchedSamplingTask
from shared.truncation import NAMES, Truncation

WORD = 4  # bytes of a token id, a log-prob, an index or a version
NONE = b"\xff" * WORD  # -1: no dispatch, no version, no parent
LARGEST = 2**31
PREDECESSORS = [np.arange(-1, 1 << 14, dtype="<i4").tobytes()]  # of the tokens of a single chain; grows


@dataclass(slots=True)
class Chain:
    """What one dispatch adds. `base`: tokens of its row that it shares with its parent; `length`: of its whole row.
    `owner`: index of the chain that it hangs below, -1: none; `offset`: the token of it."""

    dispatch: DispatchedSamplingTask
    prompt: int  # tokens
    reply: int
    base: int
    parent: int
    owner: int = -1
    offset: int = 0
    below: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.base + self.prompt + self.reply


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """A tree's digest and counts. `paths`: tokens on the paths to every reply; `sampled`: tokens of replies."""

    digest: str
    num_tokens: int
    num_trained_tokens: int
    versions: list[int]  # that sampled a trained token
    replies: int  # dispatches with at least one token
    paths: int
    sampled: int


def summary_of(data: DBRecordData, dispatches: Mapping[str, DispatchedSamplingTask]) -> TreeSummary | None:
    """None: something is unusual, or wrong."""
    chains: list[Chain] = []
    index: dict[str, int] = {}
    for used in data.dispatches:
        dispatch = dispatches.get(used.id)
        chain = None if dispatch is None or used.id in index else _chain(dispatch, chains, index)
        drawn_from = None if chain is None else _truncation(chain.dispatch)
        if chain is None or drawn_from is None or (used.trained and used.truncation != drawn_from):
            return None
        index[used.id] = len(chains)
        chains.append(chain)
    if not chains:
        return None
    trained = [chain for chain, used in zip(chains, data.dispatches, strict=True) if used.trained]
    replies = [chain for chain in chains if chain.reply]
    return TreeSummary(
        digest=_digest(chains),
        num_tokens=sum(chain.prompt + chain.reply for chain in chains),
        num_trained_tokens=sum(chain.reply for chain in trained),
        versions=sorted({version for chain in trained for version, n in chain.dispatch.weight_versions if n}),
        replies=len(replies),
        paths=sum(chain.length for chain in replies),
        sampled=sum(chain.reply for chain in replies),
    )


def _chain(dispatch: DispatchedSamplingTask, earlier: list[Chain], index: Mapping[str, int]) -> Chain | None:
    response = dispatch.response
    if response is None:
        return None
    prompt, odd = divmod(len(dispatch.prompt_ids), WORD)
    reply, odd_reply = divmod(len(response.output_ids), WORD)
    runs = dispatch.weight_versions
    whole = not odd and not odd_reply and len(response.output_logprobs) == reply * WORD
    whole = whole and sum(n for _, n in runs) == reply and all(0 <= v < LARGEST and n >= 0 for v, n in runs)
    whole = whole and (not dispatch.engines or sum(n for _, n in dispatch.engines) == reply)
    base, parent = 0, -1
    if dispatch.parent is not None:
        base, parent = dispatch.shared_length, index.get(dispatch.parent, -1)
        whole = whole and parent >= 0 and 0 <= base <= earlier[parent].length
    # A prompt without a reply leads nowhere unless another request begins with it; a reply follows something.
    if not whole or (prompt and not reply) or (reply and not base + prompt):
        return None
    chain = Chain(dispatch, prompt, reply, base, parent)
    if base:
        at = parent
        while earlier[at].base >= base:
            at = earlier[at].parent
        chain.owner, chain.offset = at, base - 1 - earlier[at].base
    return chain


@lru_cache(maxsize=256)
def _truncation_of(*values: float | None) -> Truncation:
    return Truncation.of(dict(zip(NAMES, values, strict=True)))


def _truncation(dispatch: DispatchedSamplingTask) -> Truncation | None:
    """None: its parameters are no numbers."""
    values = [dispatch.sampling_params.get(name) for name in NAMES]
    if not all(value is None or isinstance(value, int | float) for value in values):
        return None
    try:
        return _truncation_of(*values)
    except ValueError:
        return None


def _digest(chains: list[Chain]) -> str:
    token_ids: list[bytes] = []
    dispatches: list[bytes] = []
    logprobs: list[bytes] = []
    versions: list[bytes] = []
    starts: dict[int, int] = {}
    branches: list[tuple[int, int]] = []  # (first token of a chain, its parent) where that is not the token before
    place = 0
    for number in _depth_first(chains):
        chain = chains[number]
        response = chain.dispatch.response
        assert response is not None, "a chain is of an answered dispatch"
        token_ids += chain.dispatch.prompt_ids, response.output_ids
        dispatches += NONE * chain.prompt, struct.pack("<i", number) * chain.reply
        logprobs += bytes(WORD * chain.prompt), response.output_logprobs
        versions.append(NONE * chain.prompt)
        versions += [struct.pack("<i", version) * n for version, n in chain.dispatch.weight_versions]
        starts[number] = place
        above = -1 if chain.owner < 0 else starts[chain.owner] + chain.offset
        if above != place - 1:
            branches.append((place, above))
        place += chain.prompt + chain.reply
    parents = bytearray(_predecessors(place))
    for first, above in branches:
        if first < place:
            struct.pack_into("<i", parents, first * WORD, above)
    checksum = blake2b(digest_size=8)
    for parts in (token_ids, [parents], dispatches, logprobs, versions):
        checksum.update(b"".join(parts))
    return checksum.hexdigest()


def _predecessors(n: int) -> bytes:
    if len(PREDECESSORS[0]) < n * WORD:
        PREDECESSORS[0] = np.arange(-1, 2 * n, dtype="<i4").tobytes()
    return PREDECESSORS[0][: n * WORD]


def _depth_first(chains: list[Chain]) -> list[int]:
    roots: list[int] = []
    for number, chain in enumerate(chains):
        (roots if chain.owner < 0 else chains[chain.owner].below).append(number)
    order, stack = [], roots[::-1]
    while stack:
        number = stack.pop()
        order.append(number)
        below = chains[number].below
        if below:
            stack += sorted(below, key=lambda k: (-chains[k].offset, k), reverse=True)
    return order
