"""What the tests run under `accelerate launch`: python -m tests.trainer.launched OUT_DIR MODEL_DIR

Every rank reports itself; then a float64 learner takes steps, is saved half-way and at the end, the gradients of many losses are
taken, and its weights are written.
"""

import dataclasses
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import get_args
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.trainer import exactness_table
from tests.trainer.builders import random_group
from tests.trainer.loss_cases import LOSSES
from tests.trainer.replayed import replayed_group
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.folders import latest
from trainer.checkpoints.restore import load
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling import products
from trainer.modeling.float64_norms import exact_norms
from trainer.process.ending import end_process
from trainer.process.parallel import Parallel, parallel_session
from trainer.publishing.weights import write_weights
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import Optim, OptimizerConfig
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step.accumulate import Pass
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.optimizer import muon
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, merge

GROUPS_PER_STEP = 3  # with two processes one has twice the work of the other
SAVED_STEP, LAST_STEP = 2, 4
OPTIMS: tuple[Optim, ...] = get_args(Optim)
EXAMPLE = Path("assets/example/model")  # with matrices large enough for 8-bit states
OPTIMIZER = OptimizerConfig(
    learning_rate=3e-3, lr_schedule="cosine", warmup_steps=2, max_steps=6, weight_decay=0.1, max_grad_norm=0.5
)


def exact_learner(
    model_directory: Path,
    parallel: Parallel,
    loss: LossConfig = LossConfig(),
    trainable: Trainable = EVERYTHING,
    memory: MemorySettings = MemorySettings(),
) -> Learner:
    options = LearnerOptions(trainable=trainable, dtype="float64", memory=memory)
    return open_learner(model_directory, loss, OPTIMIZER, parallel, options)


def rows_of_step(
    step: int,
    max_tokens: int,
    parallel: Parallel,
    *,
    every_token: bool = False,
    linear: bool = False,
    replayed: bool = False,
) -> tuple[list[Row], Denominators]:
    """This rank's rows: the groups of the step are dealt to the ranks. A row budget of 12 makes many rows, 10000 one. `linear`:
    a row for each sequence. `replayed`: with experts for `tiny_experts_model` to repeat."""
    seeds = range(step * GROUPS_PER_STEP, (step + 1) * GROUPS_PER_STEP)
    merging = Merging.LINEAR if linear else Merging.TREE
    groups = [replayed_group(seed) if replayed else (random_group(seed), None) for seed in seeds]
    every = [merge(records, merging=merging, experts=experts) for records, experts in groups]
    trees = every[parallel.data.rank :: parallel.data.size]
    counts = [torch.zeros(0, dtype=torch.int64), *(torch.from_numpy(tree.trained_tokens_T) for tree in trees)]
    rows = pack(trees, max_tokens, every_token=every_token, one_sequence_per_row=linear)
    return rows, Denominators.count(torch.cat(counts))


def take_steps(
    learner: Learner,
    stop: int,
    max_tokens: int,
    parallel: Parallel,
    *,
    every_token: bool = False,
    replayed: bool = False,
) -> dict[str, float]:
    """From `learner.steps_done` to `stop`, in true float64; returns the metrics of the last step."""
    metrics: dict[str, float] = {}
    with exact_norms(learner.causal_lm):
        while learner.steps_done < stop:
            kind = {"every_token": every_token, "linear": learner.linear, "replayed": replayed}
            rows = rows_of_step(learner.steps_done, max_tokens, parallel, **kind)
            metrics = learner.step(*rows).metrics
    return metrics


def accumulated(learner: Learner, minibatch: Minibatch) -> Pass:
    """One update up to its gradients, which are in the parameters."""
    (anchors,) = learner._accumulator.anchors([minibatch])
    return learner._accumulator.run(minibatch, anchors)


def gradients(learner: Learner) -> dict[str, Tensor]:
    """Of the first step's rows, before any step, in true float64; whole, on every rank."""
    with exact_norms(learner.causal_lm):
        accumulated(learner, Minibatch(*rows_of_step(0, 30, learner._parallel)))
    grads = {name: p.grad for name, p in learner.causal_lm.named_parameters() if p.grad is not None}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}


def optimized(optim: Optim, model_directory: Path, parallel: Parallel) -> dict[str, Tensor]:
    """All parameters after two steps with this optimizer."""
    learner = optim_learner(optim, model_directory, parallel)
    take_steps(learner, 2, 30, parallel)
    return full_parameters(learner)


def uninterrupted_and_resumed(
    optim: Optim, out: Path, parallel: Parallel
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All parameters after three steps, without and with a checkpoint after the second."""
    learner, again = (optim_learner(optim, EXAMPLE, parallel) for _ in range(2))
    take_steps(learner, 2, 30, parallel)
    Checkpoints(out / optim, parallel, asynchronous=False).save(learner, {})
    path = latest(out / optim)
    assert path
    load(again, path, parallel)
    for one in (learner, again):
        take_steps(one, 3, 30, parallel)
    return full_parameters(learner), full_parameters(again)


def muon_alone(parallel: Parallel | None = None) -> dict[str, Tensor]:
    """A matrix after two steps on gradients of full rank; sharded over the processes of `parallel`."""
    generator = torch.Generator().manual_seed(5)
    matrix, *gradients = (torch.randn(48, 32, generator=generator) for _ in range(3))
    mesh = parallel.mesh["shard"] if parallel else None
    parameter = nn.Parameter(distribute_tensor(matrix, mesh, [Shard(0)]) if mesh else matrix.clone())
    optimizer = muon([{"params": [parameter], "weight_decay": 0.1}], OPTIMIZER.learning_rate)
    for gradient in gradients:
        parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)]) if mesh else gradient
        optimizer.step()
    moved = parameter.detach()
    return {"matrix": (moved.full_tensor() if isinstance(moved, DTensor) else moved) - matrix}


def optim_learner(optim: Optim, model_directory: Path, parallel: Parallel, **settings: float) -> Learner:
    config = dataclasses.replace(OPTIMIZER, optim=optim, lr_schedule="constant", warmup_steps=0, **settings)
    return open_learner(model_directory, LossConfig(loss=LossName.CROSS_ENTROPY), config, parallel)


def padding_of_65(parallel: Parallel) -> int:
    """Tokens that this rank adds to 65, where rank 0 has measured that oneDNN is faster."""
    with patch.object(products, "onednn_is_faster", return_value=True):
        products.choose_products(parallel)
    added = products.padding(65, torch.float32, parallel.device)
    products.use_onednn(False)
    return added


def full_parameters(learner: Learner) -> dict[str, Tensor]:
    """Copies of all parameters, of all stages, whole, on every rank; of several stages on the host. Those that two hold must
    be equal."""
    state = get_model_state_dict(learner.causal_lm, options=StateDictOptions(full_state_dict=True))
    own = {name: tensor.detach().clone() for name, tensor in state.items() if isinstance(tensor, Tensor)}
    pipeline, every = learner._parallel.pipeline, dict[str, Tensor]()
    if pipeline is None:
        return own
    for of_stage in pipeline.peers.gather_objects({name: tensor.cpu() for name, tensor in own.items()}):
        for name in every.keys() & of_stage.keys():
            assert torch.equal(every[name], of_stage[name]), name
        every |= of_stage
    return every


def main() -> None:
    out, model_directory = Path(sys.argv[1]), Path(sys.argv[2])
    with parallel_session("cpu") as parallel:
        report = {"world_size": parallel.world_size, "seen": parallel.everyone.gather_objects(parallel.rank)}
        report["settings"] = asdict(parallel.settings)
        report["padding"] = padding_of_65(parallel)
        (out / f"rank-{parallel.rank}.json").write_text(json.dumps(report))
        learner = exact_learner(model_directory, parallel)
        take_steps(learner, SAVED_STEP, 30, parallel)
        Checkpoints(out / "checkpoints", parallel).save(learner, {"seen": SAVED_STEP})
        metrics = take_steps(learner, LAST_STEP, 30, parallel)
        parameters = full_parameters(learner)
        if parallel.is_main:
            torch.save({"metrics": metrics, "parameters": parameters}, out / "result.pt")
        moved = {optim: optimized(optim, EXAMPLE, parallel) for optim in OPTIMS} | {"a matrix": muon_alone(parallel)}
        moved["8 bits, uninterrupted"], moved["8 bits, resumed"] = uninterrupted_and_resumed(
            "adamw_8bit", out, parallel
        )
        if parallel.is_main:
            torch.save(moved, out / "optimizers.pt")
        exact = exactness_table.found({name: LOSSES[name] for name in exactness_table.QUICK}, parallel)
        if parallel.is_main:
            torch.save(exact, out / "exactness.pt")
        write_weights(learner.causal_lm, model_directory, out / "weights", parallel)


if __name__ == "__main__":
    main()
    end_process(0)
