"""Why an update's gradient is not finite: which loss, of which record, at which token, and by which of its inputs.

Suffix `_E`: entries, as in `trainer/trees/tree.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.losses import LossBatch, Outcome
from trainer.trees.packing import Row

LOSSES = {"policy_E": "policy loss", "kl_E": "KL loss", "entropy_bonus_E": "entropy bonus"}
INPUTS = {  # in the order of cause and effect
    "advantage_E": "advantage",
    "old_logprob_E": "log-prob of the engine",
    "reference_logprob_E": "log-prob of the reference model",
    "proximal_logprob_E": "log-prob before the first update",
    "new_logprob_E": "log-prob of the model",
    "entropy_E": "entropy of the model",
}


@torch.no_grad()
def cause_of_update(rows: Sequence[Row], batch: LossBatch, outcome: Outcome, records_T: Sequence[str]) -> str | None:
    """A sentence about this rank's entries; None: it has none. `batch` and `outcome` are of the entries of `rows`, in order.

    If every loss is finite, the gradient is not: then the sentence names the largest loss.
    """
    if not len(batch.trajectory_E):
        return None
    losses = {text: getattr(outcome, name) for name, text in LOSSES.items()}
    for text, loss_E in losses.items():
        wrong = torch.nonzero(~torch.isfinite(loss_E))[:, 0]
        if len(wrong):
            entry = int(wrong[0])
            others = f", the first of {len(wrong)} of {len(loss_E)} trained tokens" if len(wrong) > 1 else ""
            where = _place(rows, batch, records_T, entry)
            return f"{text} is {float(loss_E[entry])} at {where}: {_inputs(rows, batch, entry)}{others}"
    text, loss_E = max(losses.items(), key=lambda item: float(item[1].abs().max()))
    entry = int(loss_E.abs().argmax())
    return (
        f"every loss is finite, the gradient is not; the largest is the {text}, {float(loss_E[entry]):.4g}, at "
        f"{_place(rows, batch, records_T, entry)}: {_inputs(rows, batch, entry)}"
    )


def _place(rows: Sequence[Row], batch: LossBatch, records_T: Sequence[str], entry: int) -> str:
    trajectory, turn = int(batch.trajectory_E[entry]), int(batch.turn_E[entry])
    record = records_T[trajectory] if trajectory < len(records_T) else f"of trajectory {trajectory}"
    place = int(torch.cat([row.positions_N[row.node_E] for row in rows])[entry])
    token = int(torch.cat([row.ids_N[row.node_E] for row in rows])[entry])
    return f"record {record}, turn {turn}, token {place} (id {token})"


def _inputs(rows: Sequence[Row], batch: LossBatch, entry: int) -> str:
    """The inputs that are not finite, or a temperature that is none; else all of them."""
    temperature = float(torch.cat([row.temperature_U[row.edge_E] for row in rows])[entry])
    columns: dict[str, Tensor | None] = {text: getattr(batch, name) for name, text in INPUTS.items()}
    values = {text: float(column[entry]) for text, column in columns.items() if column is not None}
    wrong = {text: value for text, value in values.items() if not _is_finite(value)}
    if not _is_temperature(temperature):
        wrong = {"temperature": temperature}
    shown = wrong or values | {"temperature": temperature}
    return ", ".join(f"{text} {value:.4g}" for text, value in shown.items())


def _is_finite(value: float) -> bool:
    return value - value == 0


def _is_temperature(value: float) -> bool:
    return value > 0 and _is_finite(1 / value)
