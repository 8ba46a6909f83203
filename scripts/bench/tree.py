"""What a prefix tree saves in a real training step: one learner, three ways to merge the same episodes, one after the other.

    python -m scripts.bench.tree                                    all kinds; about ten minutes on one core
    python -m scripts.bench.tree --quick                            one kind and a tiny model, in seconds
    python -m scripts.bench.tree --kind rewritten30 --repeats 3 --json bench.json
    python -m scripts.bench.tree --device cuda --hidden 2048 --layers 16 --scale 16

    none     every request to the engine is a sequence of its own       linear   requests that continue each other are one
    tree     every distinct prefix once

Each way is a process; they step in turns (none, linear, tree, none, …), so that a busy machine is busy for all, and medians are
compared: of CPU seconds on a CPU, since those of one thread do not depend on what else runs, of seconds on a GPU.

`share` is the part of an unmerged step that grows with its tokens (the rest, such as the optimizer, is measured by a step
over a few tokens). The bound of the speed-up is then 1 / (1 − share + share / U), U = tokens unmerged / tokens of the tree:
what layers alone would give. Attention saves another factor, and log-probs are the same work in every way.
"""

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median

import torch

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.synthetic import add_computing, group, growing, rewritten, write_model
from scripts.bench.turns import answer, processes_by_turns
from shared.tokens.record_tree import RecordTree
from trainer.losses import Denominators, LossConfig
from trainer.process.parallel import parallel_session
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

WAYS = (Merging.NONE, Merging.LINEAR, Merging.TREE)
Kind = Callable[[int], list[RecordTree]]  # times more tokens -> the records of one group
KINDS: dict[str, Kind] = {
    "growing10": lambda x: growing(10, prompt=64 * x, reply=80 * x, observation=80 * x),
    "growing30": lambda x: growing(30, prompt=64 * x, reply=24 * x, observation=24 * x),
    "growing100": lambda x: growing(100, prompt=64 * x, reply=8 * x, observation=8 * x),
    "rewritten10": lambda x: rewritten(10, prompt=64 * x, reasoning=64 * x, answer=16 * x, observation=80 * x),
    "rewritten30": lambda x: rewritten(30, prompt=64 * x, reasoning=20 * x, answer=4 * x, observation=24 * x),
    "rewritten100": lambda x: rewritten(100, prompt=64 * x, reasoning=6 * x, answer=2 * x, observation=8 * x),
    "group8": lambda x: group(8, 4, prompt=512 * x, reply=24 * x, observation=24 * x),
}


def measure(options: Options) -> Tables:
    heads, key_value_heads = max(options.hidden // 64, 1), max(options.hidden // 128, 1)
    write_model(
        options.folder, hidden_size=options.hidden, intermediate_size=3 * options.hidden, head_dim=64,
        num_hidden_layers=options.layers, num_attention_heads=heads, num_key_value_heads=key_value_heads,
    )  # fmt: skip
    steps, ratios = [], []
    for kind in options.kind:
        ways, fixed_s = step_by_step(kind, options)
        steps += [{"kind": kind, "merging": str(way), **ways[way]} for way in WAYS]
        ratios.append({"kind": kind, **compared(ways, fixed_s)})
        sys.stderr.write(f"{ratios[-1]}\n")
    return {"one step": steps, "speed-ups": ratios}


def step_by_step(kind: str, options: Options) -> tuple[dict[Merging, Row], float]:
    """The figures of each way, and the seconds of a step over a few tokens. RuntimeError when a process ends or is silent."""
    targets = {str(way): (way_process, (kind, way, options)) for way in WAYS}
    with processes_by_turns(targets) as pipes:
        times: dict[Merging, list[tuple[float, float]]] = {way: [] for way in WAYS}
        fixed_s = min(answer(pipes[Merging.TREE], "fixed")[0] for _ in range(5))
        for repeat in range(options.repeats + 1):
            for way in WAYS:
                seconds = answer(pipes[way], "step")
                if repeat > 0:  # the first one warms up
                    times[way].append((seconds[0], seconds[1]))
        ways = {}
        for way in WAYS:
            tokens, prepare_s, peak = answer(pipes[way], "end")
            step_s, wall_s = (median(column) for column in zip(*times[way], strict=True))
            of_way = {"step s": step_s, "wall s": wall_s, "merge and pack s": prepare_s}
            ways[way] = {"tokens": tokens, **of_way, "peak MiB": peak / 2**20}
    return ways, fixed_s


def way_process(pipe: Connection, kind: str, merging: Merging, options: Options) -> None:
    """Answer each "step" with its (compared seconds, clock seconds), "fixed" with those of a step over a few tokens, and "end"
    with (tokens, seconds of merging and packing, peak bytes).
    """
    started = time.perf_counter()
    tree = merge(KINDS[kind](options.scale), merging=merging)
    rows = pack([tree], options.max_tokens_per_row)
    prepare_s = time.perf_counter() - started
    denominators = Denominators.count(torch.from_numpy(tree.trained_tokens_T))
    small = merge(growing(1, prompt=2, reply=2, observation=0))
    with parallel_session(options.device, options.threads) as parallel:
        learner = open_learner(options.folder, LossConfig(), OptimizerConfig(), parallel)
        few = (pack([small], 8), Denominators.count(torch.from_numpy(small.trained_tokens_T)))
        learner.step(*few)
        before = reset_peak(parallel.device)
        for request in iter(pipe.recv, "end"):
            started, cpu_started = time.perf_counter(), time.process_time()
            learner.step(*(few if request == "fixed" else (rows, denominators)))
            if parallel.device.type == "cuda":
                torch.cuda.synchronize()
            wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
            pipe.send((wall_s if parallel.device.type == "cuda" else cpu_s, wall_s))
        pipe.send((sum(row.num_tokens for row in rows), prepare_s, peak_bytes(parallel.device) - before))


def compared(ways: dict[Merging, Row], fixed_s: float) -> Row:
    """Speed-ups are against no merging."""
    unmerged, tree = ways[Merging.NONE], ways[Merging.TREE]
    linear_speedup, speedup = (unmerged["step s"] / ways[way]["step s"] for way in (Merging.LINEAR, Merging.TREE))
    share = 1.0 - min(fixed_s / unmerged["step s"], 1.0)
    merged = unmerged["tokens"] / tree["tokens"]
    bound = 1.0 / (1.0 - share + share / merged)
    speedups = {"linear": linear_speedup, "tree": speedup, "tree / linear": speedup / linear_speedup}
    return {**speedups, "U": merged, "share": share, "bound": bound, "tree / bound": speedup / bound}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS), help="shapes of episodes, with turns")
    parser.add_argument("--scale", type=int, default=1, help="this many times more tokens in every part")
    parser.add_argument("--repeats", type=int, default=3, help="measured steps of each way")
    parser.add_argument("--max-tokens-per-row", type=int, default=2048, help="budget of one forward")
    parser.add_argument("--hidden", type=int, default=256, help="hidden width of the model (random weights)")
    parser.add_argument("--layers", type=int, default=2, help="its layers")
    add_computing(parser)
    run_benchmark(parser, measure, decimals=3, kind=["growing10"], repeats=1, hidden=64, layers=1)
