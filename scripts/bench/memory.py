"""Peak memory and time of one forward and one backward through rows up to 131,072 tokens: is memory linear in tokens?

    python -m scripts.bench.memory                                  a chain and a tree of 8K, 32K and 131K tokens
    python -m scripts.bench.memory --tokens 8192 --shape tree --checkpointing --json bench.json
    python -m scripts.bench.memory --quick                          one small tree, in seconds

Each row of the table is a process of its own, so that the peak is its own: on a CPU the largest resident set less what was
resident before the row (VmHWM, VmRSS), on a GPU what PyTorch allocated at most. The model is small (random weights, two
layers, one head of 16), since attention over 131,072 tokens is 8.6 billion pairs per head. On a machine that others use too the
CPU seconds say more than the others.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.results import add_computing, parsed, show, write_json
from scripts.bench.synthetic import VOCABULARY, growing, rewritten
from shared.processes.interrupt import run_command
from shared.tokens.record_tree import RecordTree
from trainer.losses import Denominators, LossBatch, LossConfig, compute
from trainer.modeling.forward import row_logprobs
from trainer.modeling.memory import MemorySettings
from trainer.process.parallel import parallel_session
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

SHAPES = ("chain", "tree")
TURNS = 64


@dataclass(frozen=True, slots=True)
class MemoryResult:
    shape: str
    tokens: int
    trained_tokens: int
    checkpointing: bool
    peak_mib: float
    bytes_per_token: float
    forward_s: float
    backward_s: float
    cpu_s: float  # of both


def episode(shape: str, tokens: int) -> list[RecordTree]:
    """About so many tokens over TURNS turns; the tree's replies are branches, half of its tokens."""
    share = tokens // TURNS
    if shape == "chain":
        return growing(TURNS, prompt=share, reply=share // 2, observation=share - share // 2)
    reasoning = share // 2
    return rewritten(
        TURNS, prompt=share, reasoning=reasoning, answer=share // 8, observation=share - reasoning - 2 * (share // 8)
    )


def measure(shape: str, tokens: int, checkpointing: bool, device: str, threads: int) -> MemoryResult:
    """In this process."""
    (row,) = pack([merge(episode(shape, tokens))], 2 * tokens)
    with tempfile.TemporaryDirectory() as directory, parallel_session(device, threads) as parallel:
        _write_model(Path(directory))
        memory = MemorySettings(activation_checkpointing=checkpointing)
        learner = open_learner(
            Path(directory), LossConfig(), OptimizerConfig(), parallel, LearnerOptions(memory=memory)
        )
        _forward_backward(learner, pack([merge(episode(shape, 512))], 1024)[0])  # kernels, buffers of gradients
        before = reset_peak(parallel.device)
        forward_s, backward_s, cpu_s = _forward_backward(learner, row)
        peak = peak_bytes(parallel.device) - before
    return MemoryResult(
        shape,
        row.num_tokens,
        row.num_entries,
        checkpointing,
        peak / 2**20,
        peak / row.num_tokens,
        forward_s,
        backward_s,
        cpu_s,
    )


def _write_model(directory: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=2**18,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)


def _forward_backward(learner: Learner, row: Row) -> tuple[float, float, float]:
    """Seconds of each, and CPU seconds of both."""
    device = next(learner.lm.parameters()).device
    mask = learner.lm.mask(device)
    row = row.to(device)
    denominators = Denominators(row.num_entries, 1, torch.tensor([row.num_entries], device=device))
    started, cpu_started = _now(device), time.process_time()
    logprob_E, _ = row_logprobs(learner.lm, row, attn=mask)
    forward_done = _now(device)
    loss, _ = compute(LossBatch.of(row, logprob_E), denominators, LossConfig())
    loss.backward()
    return forward_done - started, _now(device) - forward_done, time.process_time() - cpu_started


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072], help="sizes of the row")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=SHAPES, help="a chain, or a tree with branches")
    parser.add_argument("--checkpointing", action="store_true", help="with activation_checkpointing")
    add_computing(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parsed(parser, tokens=[512], shape=["tree"])
    if arguments.child:
        result = measure(
            arguments.shape[0], arguments.tokens[0], arguments.checkpointing, arguments.device, arguments.threads
        )
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
        return
    results = []
    for shape in arguments.shape:
        for tokens in arguments.tokens:
            options = ["--tokens", str(tokens), "--shape", shape, "--device", arguments.device]
            options += ["--threads", str(arguments.threads), *["--checkpointing"] * arguments.checkpointing]
            command = [sys.executable, "-m", "scripts.bench.memory", "--child", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results.append(MemoryResult(**json.loads(done.stdout.splitlines()[-1])))
            sys.stderr.write(f"{results[-1]}\n")
    show([_columns(result) for result in results], "one row, forward and backward")
    write_json(arguments.json, results)


def _columns(r: MemoryResult) -> dict[str, str | float]:
    return {
        "shape": r.shape,
        "tokens": f"{r.tokens:,}",
        "trained": f"{r.trained_tokens:,}",
        "checkpointed": "yes" if r.checkpointing else "no",
        "peak MiB": f"{r.peak_mib:.0f}",
        "bytes/token": f"{r.bytes_per_token:.0f}",
        "forward s": r.forward_s,
        "backward s": r.backward_s,
        "CPU s": r.cpu_s,
    }


if __name__ == "__main__":
    run_command(main)
