"""What one optimizer update is computed from: rows, and the counts that its means are over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from trainer.losses.entries import Denominators
from trainer.trees.packing import Row
from trainer.trees.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One update's data of this rank. `denominators` are this rank's own counts; `sources_T` and `records_T` name each
    trajectory's source and record, `engines` the engines by their numbers.
    """

    rows: Sequence[Row]
    denominators: Denominators
    sources_T: Sequence[str] = ()
    records_T: Sequence[str] = ()
    engines: Mapping[int, str] = field(default_factory=dict)


def count_entries(trees: Sequence[TokenTree]) -> Denominators:
    """Of this rank alone."""
    none = [np.zeros(0, dtype=np.int64)]
    tokens_T = np.concatenate(none + [tree.trained_tokens_T for tree in trees])
    entries_T = np.concatenate(none + [tree.entries_T for tree in trees])
    return Denominators.count(torch.from_numpy(tokens_T), torch.from_numpy(entries_T))
