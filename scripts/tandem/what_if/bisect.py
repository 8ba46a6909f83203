"""`tandem bisect RUN RECORD TURN`: which step changed this decision, and which of its groups.

    python -m tandem.what_if.bisect --run RUN --record RECORD --turn TURN          DB_CONNECTION_STRING in the environment

    kept weights, by step ─▶ log-prob of the reply under each ─▶ momentum taken out ─▶ the step ─▶ its groups, by push

A group's *push* is how far its part of the optimizer's step moves the reply's log-prob, to first order, at the weights before
(`pushes`). It has the sign of the change that the group asked for; compare pushes with each other alone.
"""

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from shared.configuration.loading import ServiceConfig
from shared.configuration.secrets import secret_field
from shared.documents import DBRecordData
from shared.documents.run import PolicyVersion
from shared.errors import ConfigError, DataError, TandemError
from shared.names import RunName
from shared.outside_text import visible
from shared.store import Store
from shared.tokens.flatten import tree_of
from shared.tokens.record_tree import RecordTree
from tandem.what_if.bisected import Bisection, Moment, TrainedGroup, predicted_changes, print_bisection
from tandem.what_if.forward_scores import first_folder, inputs_of_turns, turn_logprobs
from tandem.what_if.row_inputs import RowInputs, read_inputs
from tandem.what_if.sampled import SampledEpisode, SampledTurn, Spell, read_episode, speller
from tandem.what_if.stored_weights import StoredWeights, kept_weights, published_versions
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.process.ending import end_process
from trainer.process.parallel import parallel_session
from trainer.process.store_bridge import StoreBridge

RATE = "learner/learning_rate"
FLOOR = 0.1  # of the gradients' mean size: where the steps' gradients vanish, AdamW's own history decides


class BisectConfig(ServiceConfig):
    """Finds the step that changed a reply's probability, and the groups trained there."""

    section: ClassVar[str] = "bisect"
    program: ClassVar[str] = "python -m tandem.what_if.bisect"

    run: RunName = Field(description="Run name: the database.")
    db_connection_string: str = secret_field(description="MongoDB to use.")
    record: str = Field(description="The record's id.")
    turn: int = Field(ge=0, description="The turn of the record.")
    token: int | None = Field(None, ge=0, description="One token of the reply, from 0. None: the whole reply.")
    at_step: int | None = Field(None, gt=0, description="Show the groups of this step. None: of the largest change.")
    before: int = Field(
        2, ge=0, description="Also groups of so many steps before, whose gradients AdamW's momentum keeps."
    )
    groups: int = Field(8, gt=0, description="How many groups are shown.")
    run_dir: Path | None = Field(None, description="The trainer's output_dir. None: output/RUN.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="cpu or cuda.")
    json_output: bool = Field(False, description="One JSON object instead of tables.")


@dataclass(frozen=True, slots=True)
class BisectedTurn:
    """What was read of the database. `inputs`: of the turn. `trained`: the steps of the surviving history. `momentum`:
    AdamW's beta1; `rates`: its learning rate by step, as far as the trainer logged it."""

    episode: SampledEpisode
    turn: SampledTurn
    inputs: RowInputs
    published: Sequence[PolicyVersion]
    trained: Sequence[int]
    momentum: float
    rates: Mapping[int, float]
    spell: Spell


@dataclass(frozen=True, slots=True)
class StepGroup:
    """What one step trained of one task."""

    step: int
    data: Sequence[DBRecordData]
    trees: Sequence[RecordTree]
    inputs: RowInputs


async def read(store: Store, config: BisectConfig) -> BisectedTurn:
    """Raises ConfigError and DataError for what cannot be asked."""
    episode = await read_episode(store, config.record)
    turn = episode.turn(config.turn)
    if config.token is not None and config.token >= len(turn.ids):
        raise ConfigError(
            f"turn {config.turn} has {len(turn.ids)} tokens, 0 to {len(turn.ids) - 1}; token is {config.token}"
        )
    policy = episode.record.policy
    published = await published_versions(store, policy)
    run = await store.runs.read()
    steps = await store.steps.surviving(policy, run.starts.get(policy, []))
    momentum = float((await store.settings.of_trainer(run, policy)).get("adam_beta1", 0.9))
    trained = sorted(step.step for step in steps)
    starts = run.starts.get(policy, [])
    logged = {step: (await store.steps.metrics_of(policy, step, starts)).get(RATE) for step in trained}
    rates = {step: rate for step, rate in logged.items() if rate}
    inputs = await inputs_of_turns(store, [turn], published)
    return BisectedTurn(episode, turn, inputs, published, trained, momentum, rates, await speller(store, policy))


def moments(bisected: BisectedTurn, weights: StoredWeights, device: str, progress: Progress) -> list[Moment]:
    """The reply under all kept weights. Raises DataError where there are fewer than two."""
    if len(weights.all) < 2:
        has = ", ".join(f"step {stored.step}" for stored in weights.all) or "none"
        raise DataError(
            f"a change lies between two kept weights; kept are: {has}. Train with a larger `keep_versions`, or more checkpoints "
            "(`save_steps`, `keep_checkpoints`); --run_dir names another output_dir"
        )
    results = []
    for stored in progress.track(weights.all, description="weights"):
        with torch.no_grad():
            logprobs = turn_logprobs(weights.load(stored), [bisected.turn], device, bisected.inputs)[0]
        results.append(Moment(stored.step, str(stored), logprobs.float().cpu().numpy()))
    return results


def interval(measured: Sequence[Moment], pushes_of: Sequence[float], at_step: int | None) -> int:
    """The index of the moment after the change: where the data asked for most, or that of `at_step`. Raises ConfigError."""
    if at_step is None:
        return int(np.abs(pushes_of).argmax()) + 1
    after = next((i for i, moment in enumerate(measured) if moment.step >= at_step), None)
    if not after:
        raise ConfigError(
            f"step {at_step} does not lie between kept weights: those of steps {measured[0].step} to {measured[-1].step}"
        )
    return after


async def read_groups(store: Store, bisected: BisectedTurn, steps: Sequence[int]) -> list[StepGroup]:
    """In order of the steps."""
    groups: list[StepGroup] = []
    for step in steps:
        data = await store.data.find({"policy": bisected.episode.record.policy, "trained_steps": step})
        stored = await store.records.tokens_of([one.record for one in data])
        for task in dict.fromkeys(one.task for one in data):
            own = [one for one in data if one.task == task]
            trees = [tree_of(one, stored[one.record]) for one in own]
            inputs = await read_inputs(store, trees, first_folder(bisected.published))
            groups.append(StepGroup(step, own, trees, inputs))
    return groups


def pushes(
    lm: TreeLM, bisected: BisectedTurn, token: int | None, groups: Sequence[StepGroup], device: str, progress: Progress
) -> list[float]:
    """For each group ⟨g, v / (√s + ε)⟩ · beta1^age: g its gradient of Σ A·log π, v that of the reply's log-prob, s the mean over
    the steps of their squared gradients, age the steps since.

    This is TracIn (arXiv 2002.08484) with AdamW's scaling and momentum, for a policy gradient without clipping, all of it at one
    set of weights. Gradients are computed twice, so that no more than four copies of the weights are in memory.
    """
    parameters = [p for p in lm.parameters() if p.requires_grad]
    task = progress.add_task("groups", total=2 * len(groups))
    square = [torch.zeros_like(p) for p in parameters]
    steps = sorted({group.step for group in groups})
    for step in steps:
        whole = [torch.zeros_like(p) for p in parameters]
        for group in groups:
            if group.step == step:
                _add(whole, _group_gradient(lm, group, parameters, device))
                progress.advance(task)
        _add(square, [g * g / len(steps) for g in whole])
    logprobs = turn_logprobs(lm, [bisected.turn], device, bisected.inputs)[0]
    direction = _gradient(logprobs.sum() if token is None else logprobs[token], parameters)
    size = sum(s.sum().double() for s in square) / max(1, sum(s.numel() for s in square))
    floor = FLOOR * float(size) ** 0.5 + 1e-30
    scaled = [v / (s.sqrt() + floor) for v, s in zip(direction, square, strict=True)]
    values = []
    for group in groups:
        gradient = _group_gradient(lm, group, parameters, device)
        values.append(bisected.momentum ** (steps[-1] - group.step) * _dot(gradient, scaled))
        progress.advance(task)
    return values


def _add(total: Sequence[Tensor], part: Sequence[Tensor]) -> None:
    for whole, one in zip(total, part, strict=True):
        whole += one


def _group_gradient(lm: TreeLM, group: StepGroup, parameters: Sequence[Tensor], device: str) -> list[Tensor]:
    total = [torch.zeros_like(p) for p in parameters]
    for row in group.inputs.rows(lm, group.trees):
        placed = row.to(device)
        logprob_E = row_logprobs(lm, placed, attn=lm.mask(device))[0]
        _add(total, _gradient((logprob_E * placed.advantage_E).sum(), parameters))
    return total


def _gradient(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    gradients = torch.autograd.grad(value, list(parameters), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)))


def bisect(bridge: StoreBridge, config: BisectConfig, progress: Progress) -> tuple[Bisection, Spell]:
    """Raises ConfigError and DataError."""
    bisected = bridge(read(bridge.store, config))
    run_dir = config.run_dir or Path("output") / config.run
    with kept_weights(bisected.published, run_dir, config.device) as weights:
        measured = moments(bisected, weights, config.device, progress)
        own = predicted_changes(measured, config.token, bisected.momentum, bisected.rates)
        after = interval(measured, own, config.at_step)
        steps = [step for step in bisected.trained if measured[after - 1].step < step <= measured[after].step]
        groups = bridge(read_groups(bridge.store, bisected, steps))
        lm = weights.load(weights.all[after - 1])
        pushed = pushes(lm, bisected, config.token, groups, config.device, progress)
    trained = [TrainedGroup(group.step, group.data, push) for group, push in zip(groups, pushed, strict=True)]
    return Bisection(
        bisected.episode.record.id, bisected.turn, config.token, measured, own, after, trained
    ), bisected.spell


def main() -> None:
    config = BisectConfig.load_or_exit()
    try:
        with (
            StoreBridge(config.db_connection_string, config.run, read_only=True) as bridge,
            parallel_session(config.device),
            Progress(console=Console(stderr=True), transient=True) as progress,
        ):
            bisection, spell = bisect(bridge, config, progress)
    except TandemError as exc:
        sys.stderr.write(f"tandem: {visible(str(exc))}\n")
        end_process(2 if isinstance(exc, ConfigError) else 1)
    print_bisection(bisection, config.groups, spell, as_json=config.json_output)
    end_process(0)


if __name__ == "__main__":
    run_command(main)
