"""The trainer's own log-prob of each token that a step trained, and what the loss did with it, as documents.

Suffix `_E`: entries, as in `trainer/trees/tree.py`. Everything here is on the host.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.documents import DBRecordData
from shared.documents.packed import pack_floats
from shared.documents.trainer_logprobs import TokenMark, TrainerLogprobs, TurnLogprobs, trainer_logprobs_id
from trainer.losses import LossBatch, Outcome
from trainer.trees.packing import Row

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The entries of one update of this rank. `place_E`: tokens before the entry's in its context."""

    trajectory_E: Int64
    turn_E: Int64
    place_E: Int64
    logprob_E: npt.NDArray[np.float32]
    difference_E: npt.NDArray[np.float32]  # trainer − engine, in nats
    marks_E: npt.NDArray[np.uint8]


@torch.no_grad()
def token_logprobs(rows: Sequence[Row], batch: LossBatch, outcome: Outcome) -> TokenLogprobs:
    """`batch` and `outcome` are of the entries of `rows`, in their order."""
    marks_E = torch.full_like(batch.turn_E, TokenMark.HAS_LOSS)
    for mark, of_E in (
        (TokenMark.CLIPPED_HIGH, outcome.too_high_E),
        (TokenMark.CLIPPED_LOW, outcome.too_low_E),
        (TokenMark.TOKEN_MASKED, outcome.dropped_token_E),
        (TokenMark.SEQUENCE_MASKED, outcome.dropped_sequence_E),
    ):
        marks_E += of_E.to(marks_E.dtype) * int(mark)
    new_E, old_E = (of_E.detach().double().cpu() for of_E in (batch.new_logprob_E, batch.old_logprob_E))
    return TokenLogprobs(
        trajectory_E=_host(batch.trajectory_E),
        turn_E=_host(batch.turn_E),
        place_E=_host(torch.cat([row.positions_N[row.node_E] for row in rows])),
        logprob_E=new_E.numpy().astype(np.float32),
        difference_E=(new_E - old_E).numpy().astype(np.float32),
        marks_E=_host(marks_E).astype(np.uint8),
    )


def documents(
    columns: TokenLogprobs, data: Sequence[DBRecordData], step: int, trainer_generation: int
) -> Iterator[TrainerLogprobs]:
    """One for each record with a trained token. `data`: by number of the trajectory."""
    order = np.lexsort((columns.place_E, columns.turn_E, columns.trajectory_E))
    for own in _runs(order, columns.trajectory_E):
        of = data[int(columns.trajectory_E[own[0]])]
        size_E = np.abs(columns.difference_E[own])
        size_E = np.where(np.isfinite(size_E), size_E, math.inf)
        largest = int(own[np.argmax(size_E)])
        yield TrainerLogprobs(
            id=trainer_logprobs_id(of.id, step, trainer_generation),
            data=of.id,
            record=of.record,
            policy=of.policy,
            step=step,
            trainer_generation=trainer_generation,
            turns=[_turn(columns, turn) for turn in _runs(own, columns.turn_E)],
            largest_difference=float(size_E.max()),
            largest_turn=int(columns.turn_E[largest]),
            largest_place=int(columns.place_E[largest]),
        )


def _turn(columns: TokenLogprobs, own: Int64) -> TurnLogprobs:
    places = columns.place_E[own]
    first, length = int(places[0]), int(places[-1] - places[0]) + 1
    logprobs = np.full(length, np.nan, dtype=np.float32)
    marks = np.zeros(length, dtype=np.uint8)
    logprobs[places - first], marks[places - first] = columns.logprob_E[own], columns.marks_E[own]
    return TurnLogprobs(
        turn=int(columns.turn_E[own[0]]), first=first, logprobs=pack_floats(logprobs), marks=marks.tobytes()
    )


def _runs(index: Int64, values_E: Int64) -> list[Int64]:
    """`index` cut where the value changes; it is sorted by value."""
    if not len(index):
        return []
    return np.split(index, np.flatnonzero(np.diff(values_E[index])) + 1)


def _host(tensor: Tensor) -> Int64:
    return np.asarray(tensor.cpu().numpy(), dtype=np.int64)
