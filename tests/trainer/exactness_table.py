"""Each loss × {merged, unmerged} × {1, 2 processes} × {1, 4 micro-batches} against one forward per sequence and the formulas.

    python -m tests.trainer.exactness_table              the table: largest relative difference of loss and gradients, float64
    python -m tests.trainer.exactness_table --quick      fewer losses

What is compared with (`expected`) shares no code with the trainer: plain transformers forwards of every root-to-leaf sequence,
and the formulas of `tests.trainer.formulas`. Exit status 1 when a difference is above 1e-9. Launches its two processes itself.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import (
    STALENESS,
    Token,
    logprobs_one_by_one,
    random_group,
    relative_difference,
    tiny_model,
    whole,
)
from tests.trainer.conftest import launch
from tests.trainer.formulas import reference_loss
from tests.trainer.loss_cases import LOSSES
from trainer.losses import ClipAnchor, Denominators, LossConfig
from trainer.modeling.attention import dense_mask
from trainer.modeling.context_parallel import check_slices, of_slices
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.private_apis import layer_class_names
from trainer.process.sharding import shard_model
from trainer.reporting.loss_metrics import combine
from trainer.step.accumulate import Accumulator
from trainer.step.reference import Reference
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row, empty_row, pack
from trainer.trees.tree import Merging, TokenTree, merge

TOLERANCE = 1e-9
GROUP_SEEDS = (3, 8, 21, 34)
QUICK = (
    "minirl",
    "minirl, proximal",
    "grpo, dual clip",
    "grpo, entropy",
    "grpo, kl k3 off-policy",
    "cispo",
    "dppo",
    "decoupled_ppo",
    "gspo",
    "gspo, entropy and kl",
    "gspo_token",
    "opsm",
    "sft",
)
MERGINGS = {"merged": Merging.TREE, "unmerged": Merging.NONE}
MICRO_BATCHES = (1, 4)

Step = tuple[float, dict[str, Tensor]]  # loss and gradients


def frozen_model(attention: str = "sdpa") -> PreTrainedModel:
    """A little away from the trained one: the reference model, and the proximal policy where a loss has one."""
    return _moved(tiny_model(attention=attention), 0.02, seed=1)


def _moved(model: PreTrainedModel, scale: float, seed: int) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(scale * noise * parameter.abs().mean())
    return model


@cache
def step_groups() -> tuple[tuple[RecordTree, ...], ...]:
    """Groups whose stored log-probs are near those of the trained policy: every mask and clip takes some and leaves some."""
    sampler = _moved(tiny_model(), 0.03, seed=2)
    rng = np.random.default_rng(0)
    groups = []
    with exact_norms(sampler), torch.no_grad():
        for seed in GROUP_SEEDS:
            records = random_group(seed)
            columns = [[token.new.item() for token in tokens] for tokens in logprobs_one_by_one(sampler, records)]
            groups.append(tuple(_with_logprobs(r, c, rng) for r, c in zip(records, columns, strict=True)))
    return tuple(groups)


def _with_logprobs(record: RecordTree, logprobs: Sequence[float], rng: np.random.Generator) -> RecordTree:
    stored_N = record.logprobs_N.copy()
    shift = 0.1 * rng.standard_normal()
    stored_N[record.trained_N] = np.array(logprobs) + shift + 0.35 * rng.standard_normal(len(logprobs))
    return dataclasses.replace(record, logprobs_N=stored_N)


def expected(cases: Mapping[str, LossConfig]) -> dict[str, Step]:
    """One forward per sequence, and the formulas."""
    model, frozen = tiny_model(), frozen_model()
    with exact_norms(model), exact_norms(frozen):
        tokens = []
        for records in step_groups():
            tokens += logprobs_one_by_one(model, records, frozen)
        names, parameters = zip(*model.named_parameters(), strict=True)
        results = {}
        for case, config in cases.items():
            loss = reference_loss([[_as_seen(t, config) for t in of] for of in tokens], config)
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            results[case] = (loss.item(), dict(zip(names, gradients, strict=True)))
    return results


def _as_seen(token: Token, config: LossConfig) -> Token:
    return dataclasses.replace(token, proximal=token.reference) if config.clip_anchor is ClipAnchor.PROXIMAL else token


def found(cases: Mapping[str, LossConfig], parallel: Parallel) -> dict[str, dict[str, Step]]:
    """Through the trainer, sharded over the processes of `parallel`: {"merged, 4 micro-batches": {case: loss, gradients}}."""
    with ExitStack() as stack:
        attention = of_slices("sdpa", parallel.context)
        models = (tiny_model(attention=attention), frozen_model(attention))
        stages = [cut_stages(model, parallel, dtype=torch.float64) for model in models]
        pairs = zip(models, stages, strict=True)
        lm, frozen = (TreeLM(model, parallel.context, stage=stage) for model, stage in pairs)
        for each in (lm, frozen):
            stack.enter_context(exact_norms(each.causal_lm))
            check_slices(each.causal_lm, parallel.context, tp_size=1, obstacle=None)
            shard_model(each, layer_class_names(each.causal_lm), parallel, frozen=each is frozen)
        return {
            f"{label}, {count} micro-batches": {
                case: _step(lm, frozen, config, merging, count, parallel) for case, config in cases.items()
            }
            for label, merging in MERGINGS.items()
            for count in MICRO_BATCHES
        }


def _step(lm: TreeLM, frozen: TreeLM, config: LossConfig, merging: Merging, count: int, parallel: Parallel) -> Step:
    trees = [merge(records, merging=merging).at(STALENESS) for records in step_groups()]
    own = trees[parallel.data.rank :: parallel.data.size]
    rows = rows_in(own, count)
    reference = Reference(frozen, lm, parallel.device, mask=dense_mask, chunk=7) if config.kl else None
    accumulator = Accumulator(lm, reference, config, parallel, dense_mask, chunk=7, with_entropy=False)
    minibatch = Minibatch(rows, counts(own))
    (anchors,) = accumulator.anchors([minibatch])
    if config.clip_anchor is ClipAnchor.PROXIMAL:
        rounds = parallel.max_int(len(rows))
        padded = [*rows, *[empty_row()] * (rounds - len(rows))]
        proximals = _logprobs(frozen, padded, parallel)
        anchors = [dataclasses.replace(of_row, proximal_E=E) for of_row, E in zip(anchors, proximals, strict=True)]
    measured = accumulator.run(minibatch, anchors).measured
    loss = combine(parallel.data.gather_objects(measured)).sums["loss/loss"]
    gradients = {}
    for name, parameter in lm.causal_lm.named_parameters():
        assert parameter.grad is not None, f"{name} has no sharded gradient"
        gradients[name] = whole(parameter.grad).to("cpu", copy=True)
    lm.zero_grad()
    if parallel.pipeline is not None:
        for of_stage in parallel.pipeline.peers.gather_objects(gradients):
            gradients |= of_stage
    return loss, gradients


def _logprobs(lm: TreeLM, rows: Sequence[Row], parallel: Parallel) -> list[Tensor]:
    if lm.stage is not None:
        return [of.logprob_E for of in RowPipeline(lm, parallel.device, chunk=7, attn=dense_mask).scores(rows)]
    with torch.no_grad():
        return [row_logprobs(lm, row.to(parallel.device), chunk=7)[0] for row in rows]


def counts(trees: Sequence[TokenTree]) -> Denominators:
    return Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))


def rows_in(trees: Sequence[TokenTree], count: int) -> list[Row]:
    """As few rows as there are from `count` on; trees are cut for it."""
    total = sum(tree.num_tree for tree in trees)
    return next(rows for budget in range(total, 0, -1) if len(rows := pack(trees, budget)) >= count)


def differences(results: dict[str, dict[str, Step]], wanted: dict[str, Step]) -> dict[str, dict[str, float]]:
    """{case: {column: largest relative difference of loss and gradients}}"""
    return {
        case: {
            column: max(
                abs(steps[case][0] - loss) / max(abs(loss), 1e-12), relative_difference(steps[case][1], gradients)
            )
            for column, steps in results.items()
        }
        for case, (loss, gradients) in wanted.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer losses")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = {name: LOSSES[name] for name in QUICK} if arguments.quick else LOSSES
    with parallel_session("cpu", num_threads=1) as parallel:
        results = found(cases, parallel)
        if arguments.child:
            if parallel.is_main:
                torch.save(results, arguments.child)
            return
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "results.pt"
        options = ["--quick"] if arguments.quick else []
        program = ["-m", "tests.trainer.exactness_table", "--child", str(file), *options]
        done = launch("--config_file", "assets/fsdp2.yml", "--num_processes", "2", *program)
        if done.returncode != 0:
            sys.exit(done.stdout)
        both = {1: results, 2: torch.load(file, weights_only=True)}
    columns = {f"{column}, {n} process{'es'[: 2 * n - 2]}": r for n, rs in both.items() for column, r in rs.items()}
    table = differences(columns, expected(cases))
    _print(table)
    sys.exit(0 if max(max(row.values()) for row in table.values()) <= TOLERANCE else 1)


def _print(table: dict[str, dict[str, float]]) -> None:
    console = Console(width=170, highlight=False)
    columns = list(next(iter(table.values())))
    made = Table("loss", *(column.replace(", ", "\n") for column in columns), title="largest relative difference")
    for case, row in table.items():
        made.add_row(case, *(f"{value:.1e}" for value in row.values()))
    console.print(made)
    largest = max((value, case, column) for case, row in table.items() for column, value in row.items())
    console.print(f"largest of all: {largest[0]:.2e} ({largest[1]}; {largest[2]}); allowed {TOLERANCE:g}")


if __name__ == "__main__":
    main()
