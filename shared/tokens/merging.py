"""What merging a group's records into one prefix tree saves: the counts that the trainer logs, from its own rules.

num_flat    tokens if every request to the engine (prompt and reply) were one sequence, forwarded on its own
num_linear  tokens if, inside a record, a request that continues an earlier one exactly were merged with it: one
            sequence per root-to-leaf path. What linear prefix merging reaches: branches and records share nothing
num_tree    tokens of the prefix tree, in which every distinct prefix stands once
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.tokens.image_span import ImageNumbers
from shared.tokens.record_tree import Int32, RecordTree
from shared.tokens.trie import Int64, TreeLayout, Trie, runs

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LossRules:
    """Which records and dispatches of a group have a loss, by their advantages.

    `drop_zero_advantage` leaves out records whose trained dispatches all have advantage 0: they add nothing to the
    gradient of a policy-gradient loss (do not use it with cross entropy, which ignores advantages). Dispatches with an
    advantage of less than `minimal_advantage`, or with `skip_non_positive_advantage` of 0 and less, have no loss of any kind:
    no entries, and a record of nothing else is left out.
    """

    drop_zero_advantage: bool = False
    minimal_advantage: float = 0.0
    skip_non_positive_advantage: bool = False

    def loss_mask(self, record: RecordTree) -> Bool:
        """Of each token: it is trained, and its dispatch's advantage lets it have a loss."""
        minimal, only_positive = self.minimal_advantage, self.skip_non_positive_advantage
        passes_D = [abs(d.advantage) >= minimal and (d.advantage > 0.0 or not only_positive) for d in record.dispatches]
        passes_N: Bool = np.array([*passes_D, False], dtype=bool)[record.dispatches_N]
        return record.trained_N & passes_N

    def why_left_out(self, advantage: float, of_record: Sequence[float]) -> str:
        """Why a trained dispatch has no loss; empty if it has one. `of_record`: advantages of the record's trained ones."""
        if self.drop_zero_advantage and not any(of_record):
            return "every advantage of the episode is 0 (drop_zero_advantage)"
        if abs(advantage) < self.minimal_advantage:
            return f"its advantage is below {self.minimal_advantage:g} (minimal_advantage)"
        if self.skip_non_positive_advantage and advantage <= 0.0:
            return "its advantage is not positive (skip_non_positive_advantage)"
        return ""

    def kept(self, records: Sequence[RecordTree]) -> list[int]:
        """Indices of the records that are forwarded."""
        return [
            t
            for t, record in enumerate(records)
            if not (self.drop_zero_advantage and _adds_nothing(record))
            and (self.loss_mask(record).any() or not record.trained_N.any())
        ]


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """See the module's first lines."""

    num_flat: int
    num_linear: int
    num_tree: int


def merge_counts(records: Sequence[RecordTree], rules: LossRules) -> MergeCounts:
    """As the trainer counts a group that it trains."""
    trained = rules.kept(records)
    layout, _ = insert_all(records, trained)
    counts = [sequence_counts(records[t]) for t in trained]
    return MergeCounts(sum(flat for flat, _ in counts), sum(linear for _, linear in counts), len(layout.ids_N))


def insert_all(records: Sequence[RecordTree], trained: Sequence[int]) -> tuple[TreeLayout, dict[int, Int64]]:
    """The prefix tree of the `trained` records, and by record the node of each of its tokens.

    Placeholders of images are equal where the images are.
    """
    trie, numbers = Trie(), ImageNumbers()
    slots = {t: trie.insert(records[t], numbers.compared(records[t])) for t in trained}
    layout = trie.layout()
    node_of_token = {t: layout.node_of_slot[slot_N] for t, slot_N in slots.items()}
    for t in trained:
        if records[t].images:
            layout.ids_N[node_of_token[t]] = records[t].token_ids_N
    return layout, node_of_token


def sequence_counts(record: RecordTree) -> tuple[int, int]:
    """Tokens of (all request sequences, all root-to-leaf sequences)."""
    lengths_N = _depths(record.parents_N) + 1
    leaves, requests = sequence_ends(record)
    return int(lengths_N[requests].sum()), int(lengths_N[leaves].sum())


def sequence_ends(record: RecordTree) -> tuple[Int64, Int64]:
    """Last tokens of (root-to-leaf sequences, request sequences). A leaf that no request ends at is in both."""
    leaves = np.array(record.leaves(), dtype=np.int64)
    last_D = np.full(len(record.dispatches), -1, dtype=np.int64)
    sampled = np.flatnonzero(record.dispatches_N >= 0)
    np.maximum.at(last_D, record.dispatches_N[sampled], sampled)
    return leaves, np.union1d(leaves, last_D[last_D >= 0])


def _adds_nothing(record: RecordTree) -> bool:
    return all(dispatch.advantage == 0.0 for dispatch in record.dispatches if dispatch.trained)


def _depths(parents_N: Int32) -> Int64:
    """Distance from the root of every token: constant along a run, so one step of Python per run, not per token."""
    depth_N = np.zeros(len(parents_N), dtype=np.int64)
    for start, stop in runs(parents_N):
        parent = int(parents_N[start])
        first = 0 if parent < 0 else int(depth_N[parent]) + 1
        depth_N[start:stop] = np.arange(first, first + stop - start)
    return depth_N
