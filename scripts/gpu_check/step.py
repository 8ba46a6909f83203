"""Memory and time of a step: python -m scripts.gpu_check.step --device cuda --setting plain

A model of 405 million parameters (2,048 wide, 8 layers, heads of 64, a vocabulary of 1,024), one row of 25,536 tokens of a tree,
bfloat16 over float32. Prints one JSON object: what the allocator holds between steps and at most, in GiB; the median of four
steps, in seconds.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from scripts.bench.synthetic import rewritten, write_model
from tests import hostgpu
from trainer.losses import Denominators, LossConfig
from trainer.process.parallel import parallel_session
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import merge

SETTINGS_OF_STEP = {
    "plain": MemorySettings(),
    "activation_checkpointing": MemorySettings(activation_checkpointing=True),
}
STEPS_MEASURED = 4
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--setting", choices=SETTINGS_OF_STEP, default="plain")
    parser.add_argument("--small", action="store_true", help="a model and a row that a CPU computes in seconds")
    args = parser.parse_args()
    if args.device == hostgpu.NAME:
        hostgpu.install()
    module = torch.get_device_module(args.device)
    hidden, layers, times = (128, 2, 1) if args.small else (2048, 8, 16)
    records = rewritten(30, prompt=64 * times, reasoning=20 * times, answer=4 * times, observation=24 * times)
    tree = merge(records)
    rows, counts = pack([tree], tree.num_tree), Denominators.count(torch.from_numpy(tree.trained_tokens_T))
    with tempfile.TemporaryDirectory() as folder, parallel_session(args.device, num_threads=1) as parallel:
        write_model(
            Path(folder), hidden_size=hidden, intermediate_size=3 * hidden, head_dim=64, num_hidden_layers=layers,
            num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128,
        )  # fmt: skip
        in_bf16 = dataclasses.replace(parallel, settings=dataclasses.replace(parallel.settings, precision="bf16"))
        options = LearnerOptions(memory=SETTINGS_OF_STEP[args.setting])
        learner = open_learner(Path(folder), LossConfig(), OptimizerConfig(), in_bf16, options)
        learner.step(rows, counts)
        for optimizer in learner.optimizers:
            optimizer.zero_grad()
        torch.accelerator.synchronize()
        states, seconds = module.memory_allocated() / GIB, []
        module.reset_peak_memory_stats()
        for _ in range(STEPS_MEASURED):
            started = time.perf_counter()
            learner.step(rows, counts)
            torch.accelerator.synchronize()
            seconds.append(time.perf_counter() - started)
        peak = module.max_memory_allocated() / GIB
        name = module.get_device_name() if args.device == "cuda" else args.device
    measured = {
        "states GiB": states,
        "peak GiB": peak,
        "step s": median(seconds),
        "tokens": sum(row.num_tokens for row in rows),
    }
    sys.stdout.write(json.dumps({**measured, "attention": learner.lm.way.attention, "device": name}) + "\n")


if __name__ == "__main__":
    main()
