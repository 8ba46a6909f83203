"""Ranks of a trainer on the processors of this machine: the most memory that a step takes, by the kernel's own count.

    python -m scripts.bench.real_ranks RANK RANKS PORT FOLDER TOKENS CHECKPOINTING     one rank; scripts/bench/plan.py starts all

What is counted is the resident memory of the second step beyond what the process had before it opened the model. Blocks of
1 MiB and more go back to the kernel at once (MALLOC_MMAP_THRESHOLD_), so that heap which the allocator would keep is not counted.
"""

import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.synthetic import growing
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from trainer.losses import Denominators, LossConfig, LossName
from trainer.process.parallel import parallel_session
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import merge

ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**20), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def measured_peak(folder: Path, layout: Layout, row: TrainedRow) -> int:
    """Bytes of the rank that takes most."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(layout.ranks), str(port), str(folder), str(row.tokens), str(int(row.checkpointing))]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "scripts.bench.real_ranks", str(rank), *words],
            env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(layout.ranks)
    ]  # fmt: skip
    outputs = [rank.communicate()[0] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), "a rank failed: its error stands above"
    return max(int(json.loads(output.splitlines()[-1])) for output in outputs)


def write_shape(folder: Path, shape: ModelShape) -> None:
    """A folder with random weights of this shape."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape.config())).save_pretrained(folder)


def main() -> None:
    rank, ranks, port, folder, tokens, checkpointing = sys.argv[1:]
    if int(ranks) > 1:
        places = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        os.environ.update(places)
    (row,) = pack([merge(growing(1, prompt=int(tokens) // 2, reply=int(tokens) // 2, observation=0))], 2 * int(tokens))
    denominators = Denominators(row.num_entries, 1, torch.tensor([row.num_entries]))
    with parallel_session("cpu", 1) as parallel:
        before = reset_peak(parallel.device)
        memory = MemorySettings(activation_checkpointing=checkpointing == "1")
        loss = LossConfig(loss=LossName.CROSS_ENTROPY)
        learner = open_learner(Path(folder), loss, OptimizerConfig(), parallel, LearnerOptions(memory=memory))
        learner.step([row], denominators)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        reset_peak(parallel.device)
        learner.step([row], denominators)
        peak = peak_bytes(parallel.device) - before
    sys.stdout.write(f"{peak}\n")


if __name__ == "__main__":
    main()
