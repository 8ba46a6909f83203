"""Ranks of a trainer on the processors of this machine: the most memory that a step takes, by the kernel's own count.

    python -m scripts.bench.real_ranks RANK PORT FOLDER LAYOUT ROW     one rank, by JSON; scripts/bench/plan.py starts all

What is counted is the resident memory of the second step beyond what the process had after a step of a tiny model, which loads
modules and compiles kernels. Blocks of 64 KiB and more go back to the kernel at once (MALLOC_MMAP_THRESHOLD_), so that heap which
the allocator would keep is not counted. Routers have random weights, so with `ep_size` the experts of one rank are chosen more
often than those of the other: each rank counts the tokens that it receives.
"""

import ctypes
import dataclasses
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.synthetic import growing
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.expert_parallel import SpreadExperts
from trainer.process.parallel import parallel_session
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import merge

WHOLE, TINY = "whole", "tiny"  # folders
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**16), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredRank:
    """Of one rank. `peak`: bytes. `received`: tokens that its experts got in all layers, by an equal share."""

    peak: int
    received: float


def measured_ranks(folder: Path, layout: Layout, row: TrainedRow) -> list[MeasuredRank]:
    """In order of rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(port), str(folder), *(json.dumps(dataclasses.asdict(of)) for of in (layout, row))]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "scripts.bench.real_ranks", str(rank), *words],
            env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(layout.ranks)
    ]  # fmt: skip
    outputs = [rank.communicate()[0] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "a rank failed: its error stands above"
    return [MeasuredRank(**json.loads(output.splitlines()[-1])) for output in outputs]


def write_shape(folder: Path, shape: ModelShape) -> None:
    """Two folders with random weights: of this shape, and of a tiny one of its kind."""
    torch.manual_seed(0)
    widths: dict[str, Any] = {"hidden": 64, "head_width": 8, "inner": 64, "expert_width": min(shape.expert_width, 64)}
    tiny = dataclasses.replace(shape, layers=2, **widths)
    for name, one in ((WHOLE, shape), (TINY, tiny)):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**one.config()))
        model.save_pretrained(folder / name)


def main() -> None:
    rank, port, folder, of_layout, of_row = sys.argv[1:]
    layout, planned = Layout(**json.loads(of_layout)), TrainedRow(**json.loads(of_row))
    if layout.ranks > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(layout.ranks)}
        os.environ.update({**places, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    prompt = planned.tokens - planned.trained_tokens
    tree = merge(growing(1, prompt=prompt, reply=planned.trained_tokens, observation=0))
    rows = pack([tree], 2 * planned.tokens) * planned.rows
    entries = [row.num_entries for row in rows]
    denominators = Denominators(sum(entries), len(rows), torch.tensor(entries))
    sizes = {"tp_size": layout.tp, "cp_size": layout.cp, "pp_size": layout.pp, "ep_size": layout.ep}
    memory = MemorySettings(
        activation_checkpointing=planned.checkpointing,
        reduce_each_row=planned.reduces_each,
        logprob_chunk=planned.logprob_chunk,
    )
    loss, options = LossConfig(loss=LossName.CROSS_ENTROPY), LearnerOptions(memory=memory)
    with parallel_session("cpu", 1, **sizes) as parallel:
        opened = partial(open_learner, loss=loss, optimizer=OptimizerConfig(), parallel=parallel, options=options)
        opened(Path(folder) / TINY).step(rows, denominators)
        base = _settled(parallel.device)
        learner = opened(Path(folder) / WHOLE)
        learner.step(rows, denominators)
        _settled(parallel.device)
        with counted_tokens() as received:
            learner.step(rows, denominators)
        measured = MeasuredRank(peak_bytes(parallel.device) - base, received())
    sys.stdout.write(f"{json.dumps(dataclasses.asdict(measured))}\n")


@contextmanager
def counted_tokens() -> Iterator[Callable[[], float]]:
    """Of the forwards in it: tokens that this rank's experts received, by those that it sent; all ranks send as many."""
    counts, sums = SpreadExperts.counts, [0, 0]

    def counted(spread: SpreadExperts, experts_P: Tensor) -> tuple[Tensor, list[int], list[int]]:
        result = counts(spread, experts_P)
        sums[0] += sum(result[2])
        sums[1] += len(experts_P)
        return result

    with patch.object(SpreadExperts, "counts", counted):
        yield lambda: sums[0] / sums[1] if sums[1] else 1.0


def _settled(device: torch.device) -> int:
    """What is resident once all that is free has gone back to the kernel; the peak is counted from here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return reset_peak(device)


if __name__ == "__main__":
    main()
