"""Peak memory and time of one forward and one backward through rows up to 131,072 tokens: is memory linear in tokens?

    python -m scripts.bench.memory                                  a chain and a tree of 8K, 32K and 131K tokens
    python -m scripts.bench.memory --tokens 8192 --shape tree --checkpointing --json bench.json
    python -m scripts.bench.memory --parts                          bytes by part, predicted and measured (memory_parts.py)
    python -m scripts.bench.memory --quick                          one small tree, in seconds

Each row of the table is a process of its own, so that the peak is its own: on a CPU the largest resident set less what was
resident before the row (VmHWM, VmRSS), on a GPU what PyTorch allocated at most. The model is small (random weights, two
layers, one head of 16), since attention over 131,072 tokens is 8.6 billion pairs per head. On a machine that others use too the
CPU seconds say more than the others.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import torch

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.memory_parts import measure_parts
from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.synthetic import add_computing, growing, rewritten, write_model
from shared.tokens.record_tree import RecordTree
from tandem.launch.trainer_memory import OPTIMIZERS
from trainer.losses import Denominators, LossBatch, LossConfig, compute
from trainer.modeling.forward import row_logprobs
from trainer.process.parallel import parallel_session
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import Row as PackedRow
from trainer.trees.packing import pack
from trainer.trees.tree import merge

SHAPES = ("chain", "tree")
TURNS = 64


def measure(options: Options) -> Tables:
    if options.parts:
        return measure_parts(options)
    write_model(
        options.folder, hidden_size=32, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=1, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    rows = []
    for shape in options.shape:
        for tokens in options.tokens:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
                rows.append(one.submit(row_of, options, shape, tokens).result())
    return {"one row, forward and backward": rows}


def row_of(options: Options, shape: str, tokens: int) -> Row:
    """In this process."""
    (row,) = pack([merge(episode(shape, tokens))], 2 * tokens)
    with parallel_session(options.device, options.threads) as parallel:
        memory = MemorySettings(activation_checkpointing=options.checkpointing)
        learner = open_learner(options.folder, LossConfig(), OptimizerConfig(), parallel, LearnerOptions(memory=memory))
        _forward_backward(learner, pack([merge(episode(shape, 512))], 1024)[0])  # kernels, buffers of gradients
        before = reset_peak(parallel.device)
        times = _forward_backward(learner, row)
        peak = peak_bytes(parallel.device) - before
    sizes = {
        "shape": shape,
        "tokens": row.num_tokens,
        "trained": row.num_entries,
        "checkpointing": options.checkpointing,
    }
    return {**sizes, "peak MiB": peak / 2**20, "bytes/token": peak / row.num_tokens, **times}


def episode(shape: str, tokens: int) -> list[RecordTree]:
    """About so many tokens over TURNS turns; the tree's replies are branches, half of its tokens."""
    share = tokens // TURNS
    if shape == "chain":
        return growing(TURNS, prompt=share, reply=share // 2, observation=share - share // 2)
    reasoning, answer = share // 2, share // 8
    observation = share - reasoning - 2 * answer
    return rewritten(TURNS, prompt=share, reasoning=reasoning, answer=answer, observation=observation)


def _forward_backward(learner: Learner, row: PackedRow) -> Row:
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
    backward_s, cpu_s = _now(device) - forward_done, time.process_time() - cpu_started
    return {"forward s": forward_done - started, "backward s": backward_s, "CPU s": cpu_s}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768, 131072], help="sizes of the row")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=SHAPES, help="a chain, or a tree with branches")
    parser.add_argument(
        "--parts", action="store_true", help="bytes by part instead: full, LoRA, DoRA, QLoRA, each optimizer"
    )
    parser.add_argument(
        "--optim", choices=OPTIMIZERS, nargs="+", default=OPTIMIZERS, help="with --parts: of these alone"
    )
    parser.add_argument("--checkpointing", action="store_true", help="with activation_checkpointing")
    add_computing(parser)
    run_benchmark(parser, measure, decimals=1, tokens=[512], shape=["tree"])
