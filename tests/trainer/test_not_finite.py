"""A gradient that is not finite says which loss, which record, which token and which value; a run of such steps has failed."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch

from shared.errors import DataError
from tests.trainer.launched import accumulated, exact_learner, full_parameters, rows_of_step
from trainer.process.parallel import Parallel
from trainer.reporting.alarms import Alarms
from trainer.reporting.moved import Moved
from trainer.step.learner import Learner
from trainer.trees.minibatch import Minibatch

RECORDS = [f"main:train:0:t{number}:0:1" for number in range(64)]


def step(learner: Learner, parallel: Parallel, column: str, value: float) -> "str | None":
    """A step in which the last entry of the last row has `value` in `column`; why it was skipped."""
    rows, denominators = rows_of_step(0, 30, parallel)
    row = rows[-1]
    values = getattr(row, column).clone()
    values[-1] = value
    rows[-1] = dataclasses.replace(row, **{column: values})
    result = learner.step_in_minibatches([Minibatch(rows, denominators, records_T=RECORDS)])
    assert result.skipped == (result.not_finite is not None)
    if result.skipped:
        trajectory, place = int(row.trajectory_E[-1]), int(row.positions_N[row.node_E[-1]])
        token, turn = int(row.ids_N[row.node_E[-1]]), int(row.turn_E[-1])
        assert f"record {RECORDS[trajectory]}, turn {turn}, token {place} (id {token})" in str(result.not_finite)
    return result.not_finite


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("advantage_E", math.nan, r"policy loss is nan at .*: advantage nan"),
        ("advantage_E", math.inf, r"policy loss is (-inf|inf|nan) at .*: advantage inf"),
        ("old_logprob_E", math.nan, r"policy loss is nan at .*: log-prob of the engine nan"),
    ],
)
def test_a_step_that_is_not_finite_names_loss_record_token_and_value(
    model_directory: Path, alone: Parallel, column: str, value: float, said: str
) -> None:
    learner = exact_learner(model_directory, alone)
    before = full_parameters(learner)
    why = step(learner, alone, column, value)
    assert why is not None
    assert re.search(said, why), why
    assert all(torch.equal(tensor, before[name]) for name, tensor in full_parameters(learner).items())
    (alarm,), _ = Alarms().check({"learner/skipped_steps": 1.0}, why)
    assert RECORDS[0][:12] in str(alarm)


def test_a_gradient_that_overflows_names_the_largest_loss(model_directory: Path, alone: Parallel) -> None:
    """What the learner asks once the norm of the gradient is not finite."""
    rows, denominators = rows_of_step(0, 30, alone)
    rows[-1] = dataclasses.replace(rows[-1], advantage_E=torch.full_like(rows[-1].advantage_E, 3e38))
    update = accumulated(exact_learner(model_directory, alone), Minibatch(rows, denominators, records_T=RECORDS))
    why = update.not_finite()
    assert why is not None
    assert why.startswith("every loss is finite, the gradient is not; the largest is the policy loss, ")
    assert "advantage 3e+38" in why


def test_a_temperature_that_divides_by_zero_is_named(model_directory: Path, alone: Parallel) -> None:
    learner = exact_learner(model_directory, alone)
    rows, denominators = rows_of_step(0, 30, alone)
    cold = [dataclasses.replace(row, temperature_U=row.temperature_U * 0) for row in rows]
    why = learner.step_in_minibatches([Minibatch(cold, denominators, records_T=RECORDS)]).not_finite
    assert why is not None
    assert "record main:train:0:" in why
    assert ": temperature 0, the first of " in why


def test_a_run_of_skipped_steps_has_failed_also_when_it_is_started_again(tmp_path: Path, alone: Parallel) -> None:
    path = tmp_path / "metrics.jsonl"
    moved = Moved(path, 0, alone)
    moved.check()  # without a step nothing has failed
    for number in (1, 2):
        moved.note(number, skipped=True, not_finite="policy loss is nan at record r")
    with pytest.raises(DataError, match=r"every step was skipped \(2\).* step 1: policy loss is nan at record r"):
        moved.check()
    path.write_text("".join(json.dumps({"step": s, "learner/skipped_steps": 1.0}) + "\n" for s in (1, 2, 3)))
    with pytest.raises(DataError, match=r"every step was skipped \(2\)"):
        Moved(path, 2, alone).check()
    again = Moved(path, 2, alone)
    again.note(3, skipped=False, not_finite=None)
    again.check()
