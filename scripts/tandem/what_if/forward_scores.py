"""Log-probs of sampled turns under one set of weights: the trainer's own forward, one prefix tree for all turns."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shared.documents.run import FIRST_VERSION, PolicyVersion
from shared.store import Store
from shared.tokens.record_tree import RecordTree, TreeDispatch
from tandem.what_if.row_inputs import RowInputs, read_inputs
from tandem.what_if.sampled import SampledTurn
from trainer.modeling.attention import MaskBuilder
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.truncation import columns, near
from trainer.trees.packing import Row


def turn_logprobs(
    lm: TreeLM, turns: Sequence[SampledTurn], device: str, inputs: RowInputs, *, settle_ties: bool = False
) -> list[Tensor]:
    """For each turn the log-prob of every sampled token, with gradient where that is enabled. `inputs`: those of the turns.
    `settle_ties`: by `settled_logprobs`."""
    rows = inputs.rows(lm, [chain(turn) for turn in turns])
    parts_of: list[list[Tensor]] = [[] for _ in turns]
    for row in rows:
        placed, mask = row.to(device), lm.mask(device)
        logprob_E = settled_logprobs(lm, placed, mask) if settle_ties else row_logprobs(lm, placed, attn=mask)[0]
        for at in row.trajectory_E.unique().tolist():
            parts_of[at].append(logprob_E[row.trajectory_E == at])
    return [torch.cat(parts) for parts in parts_of]


async def inputs_of_turns(store: Store, turns: Sequence[SampledTurn], published: Sequence[PolicyVersion]) -> RowInputs:
    """Raises DataError and ConfigError: `read_inputs`."""
    return await read_inputs(store, [chain(turn) for turn in turns], first_folder(published))


def first_folder(published: Sequence[PolicyVersion]) -> Path:
    """Of the model with which the run began, and of its image processor."""
    return Path(next((version.path for version in published if version.version == FIRST_VERSION), ""))


@torch.no_grad()
def settled_logprobs(lm: TreeLM, row: Row, mask: MaskBuilder) -> Tensor:
    """Log-probs to be compared with the stored ones. Which tokens a truncation keeps is decided by rounding where the next one
    lies at its boundary: of the sets that are possible, the one whose log-prob is nearest to what is stored."""
    logprob_E = row_logprobs(lm, row, attn=mask)[0]
    if columns(row.truncation_U) is not None:
        for truncation_U in near(row.truncation_U):
            other_E = row_logprobs(lm, dataclasses.replace(row, truncation_U=truncation_U), attn=mask)[0]
            is_nearer = (other_E - row.old_logprob_E).abs() < (logprob_E - row.old_logprob_E).abs()
            logprob_E = torch.where(is_nearer, other_E, logprob_E)
    return logprob_E


def chain(turn: SampledTurn) -> RecordTree:
    """The prompt and the reply as a record of one request."""
    before, sampled = len(turn.prompt), len(turn.ids)
    total = before + sampled
    logprobs, versions = np.zeros(total, dtype=np.float32), np.full(total, -1, dtype=np.int32)
    logprobs[before:], versions[before:] = turn.logprobs, turn.versions
    dispatches = np.full(total, -1, dtype=np.int32)
    dispatches[before:] = 0
    return RecordTree(
        record_id=turn.dispatch.id,
        token_ids_N=np.array([*turn.prompt, *turn.ids], dtype=np.int32),
        parents_N=np.arange(-1, total - 1, dtype=np.int32),
        dispatches_N=dispatches,
        logprobs_N=logprobs,
        versions_N=versions,
        dispatches=(TreeDispatch(turn.dispatch.id, turn.number, 1.0, turn.temperature, truncation=turn.truncation),),
        images=tuple(turn.images),
        experts=tuple(turn.experts),
    )
