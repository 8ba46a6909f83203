"""One rank of a sharded gradient: `python -m tests.trainer.fsdp_child RANK WORLD_SIZE STORE_FILE OUTPUT_FILE`.

Groups are dealt to the ranks, a rank that runs out of rows runs empty ones, and rank 0 writes the gathered gradients of every
case as {case: {parameter: gradient}}.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from tests.trainer.builders import random_group, tiny_model
from trainer.losses import Denominators, LossBatch, LossConfig, compute
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.process.ending import end_process
from trainer.trees.packing import empty_row, pack
from trainer.trees.tree import TokenTree, merge

CASES = {  # tied head, root freed after its forward, activations recomputed
    "tied": (True, False, False),
    "tied, root resharded": (True, True, False),
    "untied, root resharded": (False, True, False),
    "tied, checkpointed": (True, True, True),
}
MAX_TOKENS = 30


def step_trees() -> list[TokenTree]:
    """Five groups: with two ranks one has more rows than the other."""
    return [merge(random_group(seed)) for seed in range(5)]


def every_case(rank: int, world_size: int) -> dict[str, dict[str, Tensor]]:
    """The process group must exist."""
    return {
        case: sharded_gradients(rank, world_size, tied=tied, reshard=reshard, checkpointed=checkpointed)
        for case, (tied, reshard, checkpointed) in CASES.items()
    }


def sharded_gradients(
    rank: int, world_size: int, *, tied: bool, reshard: bool, checkpointed: bool
) -> dict[str, Tensor]:
    mesh = init_device_mesh("cpu", (world_size,))
    model = tiny_model(tied=tied)
    if checkpointed:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    lm = TreeLM(model)
    with exact_norms(model):
        for layer in model.base_model.layers:
            fully_shard(layer, mesh=mesh)
        sharded = fully_shard(lm, mesh=mesh, reshard_after_forward=reshard)
        backward(sharded, lm, rank, world_size)
    gathered = {}
    for name, parameter in lm.named_parameters():
        assert isinstance(parameter.grad, DTensor), f"{name} has no sharded gradient"
        gathered[name.removeprefix("causal_lm.")] = parameter.grad.full_tensor()
    return gathered


def backward(sharded: FSDPModule, lm: TreeLM, rank: int, world_size: int) -> None:
    trees = step_trees()
    per_rank = [pack(trees[r::world_size], MAX_TOKENS) for r in range(world_size)]
    rounds = max(len(rows) for rows in per_rank)
    everything = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
    own_T = torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees[rank::world_size]])
    denominators = Denominators(everything.num_tokens, everything.num_trajectories, own_T)
    for i in range(rounds):
        sharded.set_requires_gradient_sync(i == rounds - 1)
        row = per_rank[rank][i] if i < len(per_rank[rank]) else empty_row()
        logprob_E, _ = row_logprobs(lm, row, chunk=5)
        loss, _ = compute(LossBatch.of(row, logprob_E), denominators, LossConfig())
        (loss * world_size).backward()


def main() -> None:
    rank, world_size, store, output = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=200)
    )
    result = every_case(rank, world_size)
    if rank == 0:
        torch.save(result, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_process(0)
