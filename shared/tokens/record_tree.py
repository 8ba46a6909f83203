"""One episode as a token tree: the arrays that `shared.tokens.flatten` builds from its dispatches, and their invariants.

An episode whose context only grows is a chain. When a context policy rewrites history, the new request shares a shorter
prefix with an older one: a branch. Nodes are in depth-first pre-order, so a node's parent always comes before it and its
subtree is one contiguous range.

    index            0    1    2    3    4    5        suffix _N: one entry per node (token)
    token_ids_N     [sys, q,   a0,  tool, a1, a1']
    parents_N       [-1,  0,   1,   2,   3,   2 ]      a1' continues after a0 without the tool's answer
    dispatches_N    [-1, -1,   0,  -1,   1,   2 ]      which dispatch sampled it; -1: prompt, template, tool result
    logprobs_N      [ 0,  0, -.3,   0, -.1, -.7]      of the sampled tokens, in the distribution that they were drawn from
    versions_N      [-1, -1,   7,  -1,   7,   8 ]      weight version that sampled it

`images` says which tokens are the placeholders of which image (`shared/tokens/image_span.py`), `experts` which experts the engine
chose for which tokens (`shared/tokens/expert_span.py`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.tokens.expert_span import ExpertSpan, check_experts
from shared.tokens.image_span import ImageSpan, check_images
from shared.truncation import WHOLE, Truncation

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TreeDispatch:
    """The trainer's inputs from one request to the engine: `advantage` of the dispatch; its log-probs are of the distribution at
    `temperature` that `truncation` leaves."""

    id: str
    turn: int
    advantage: float
    temperature: float = 1.0
    trained: bool = True  # False: its tokens are only context (for example an aborted reply)
    truncation: Truncation = WHOLE
    engines: tuple[tuple[str, int | None], ...] = ()  # (URL, tokens) in order; None: all of them. (): not known


@dataclass(frozen=True, slots=True)
class RecordTree:
    """The token tree of one record; see the module's diagram. Raises ValueError if its arrays contradict each other."""

    record_id: str
    token_ids_N: Int32
    parents_N: Int32
    dispatches_N: Int32
    logprobs_N: Float32
    versions_N: Int32
    dispatches: tuple[TreeDispatch, ...]
    images: tuple[ImageSpan, ...] = ()  # in the order of their first tokens
    experts: tuple[ExpertSpan, ...] = ()  # in the order of their requests

    def __post_init__(self) -> None:
        n = len(self.token_ids_N)
        for name in ("parents_N", "dispatches_N", "logprobs_N", "versions_N"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"record {self.record_id}: {len(getattr(self, name))} {name} for {n} tokens")
        if n == 0:
            raise ValueError(f"record {self.record_id}: no tokens")
        if (self.parents_N >= np.arange(n)).any() or (self.parents_N < -1).any():
            raise ValueError(f"record {self.record_id}: a parent does not come before its child")
        if (self.dispatches_N >= len(self.dispatches)).any() or (self.dispatches_N < -1).any():
            raise ValueError(
                f"record {self.record_id}: a token names a dispatch beyond the {len(self.dispatches)} known"
            )
        sampled_N = self.dispatches_N >= 0
        if (sampled_N != (self.versions_N >= 0)).any():
            raise ValueError(f"record {self.record_id}: a sampled token without a weight version, or the reverse")
        if (sampled_N & (self.parents_N < 0)).any():
            raise ValueError(f"record {self.record_id}: a sampled token without anything before it")
        check_images(self)
        check_experts(self)

    @property
    def num_tokens(self) -> int:
        """Number of tree tokens, which a merged forward computes once each."""
        return len(self.token_ids_N)

    @property
    def trained_N(self) -> npt.NDArray[np.bool_]:
        """True for tokens with a training entry."""
        trained_D = np.array([d.trained for d in self.dispatches] + [False], dtype=bool)
        return trained_D[self.dispatches_N]  # index -1 reads the appended False

    def path(self, node: int) -> Int32:
        """Node indices from the root to `node`, both included."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = int(self.parents_N[node])
        return np.array(nodes[::-1], dtype=np.int32)

    def leaves(self) -> list[int]:
        """Nodes without children, in depth-first order: one per branch of the episode."""
        has_child_N = np.zeros(self.num_tokens, dtype=bool)
        has_child_N[self.parents_N[self.parents_N >= 0]] = True
        return [int(i) for i in np.flatnonzero(~has_child_N)]
