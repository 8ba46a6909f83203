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

import argparse
import multiprocessing as mp
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.results import add_computing, parsed, write_json
from scripts.bench.synthetic import VOCABULARY, group, growing, rewritten
from shared.processes.interrupt import run_command
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
PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Of every process of the run."""

    model: str
    device: str
    threads: int
    max_tokens_per_row: int
    scale: int


@dataclass(frozen=True, slots=True)
class MergeFigures:
    """One way to merge: tokens forwarded, the median step in compared and in clock seconds, seconds of merging and packing,
    and the most memory that a step took beyond what the process had."""

    tokens: int
    step_s: float
    wall_s: float
    prepare_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class TreeResult:
    """`ways` by the name of the merging; speed-ups are against no merging."""

    kind: str
    ways: dict[str, MergeFigures]
    fixed_s: float
    share: float
    bound: float

    def speedup(self, way: Merging) -> float:
        return self.ways[Merging.NONE].step_s / self.ways[way].step_s


def way_process(pipe: Connection, kind: str, merging: Merging, settings: TreeSettings) -> None:
    """Answer each "step" with its (compared seconds, clock seconds), "fixed" with those of a step over a few tokens, and "end"
    with (tokens, seconds of merging and packing, peak bytes).
    """
    started = time.perf_counter()
    tree = merge(KINDS[kind](settings.scale), merging=merging)
    rows = pack([tree], settings.max_tokens_per_row)
    prepare_s = time.perf_counter() - started
    denominators = Denominators.count(torch.from_numpy(tree.trained_tokens_T))
    small = merge(growing(1, prompt=2, reply=2, observation=0))
    with parallel_session(settings.device, settings.threads) as parallel:
        learner = open_learner(Path(settings.model), LossConfig(), OptimizerConfig(), parallel)
        few = (pack([small], 8), Denominators.count(torch.from_numpy(small.trained_tokens_T)))
        learner.step(*few)
        before = reset_peak(parallel.device)
        for asked in iter(pipe.recv, "end"):
            started, cpu_started = time.perf_counter(), time.process_time()
            learner.step(*(few if asked == "fixed" else (rows, denominators)))
            if parallel.device.type == "cuda":
                torch.cuda.synchronize()
            wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
            pipe.send((wall_s if parallel.device.type == "cuda" else cpu_s, wall_s))
        pipe.send((sum(row.num_tokens for row in rows), prepare_s, peak_bytes(parallel.device) - before))


def measure(kind: str, settings: TreeSettings, repeats: int) -> TreeResult:
    """All ways in turns. Raises RuntimeError when one of the processes ends or does not answer in time."""
    context = mp.get_context("spawn")
    children: dict[Merging, tuple[mp.process.BaseProcess, Connection]] = {}
    try:
        for way in WAYS:
            ours, theirs = context.Pipe()
            child = context.Process(target=way_process, args=(theirs, kind, way, settings))
            child.start()
            theirs.close()
            children[way] = (child, ours)
        times: dict[Merging, list[tuple[float, float]]] = {way: [] for way in WAYS}
        fixed_s = min(_ask(children[Merging.TREE][1], "fixed")[0] for _ in range(5))
        for repeat in range(repeats + 1):
            for way, (_, pipe) in children.items():
                answer = _ask(pipe, "step")
                if repeat > 0:  # the first one warms up
                    times[way].append(answer)
        ways = {}
        for way, (_, pipe) in children.items():
            tokens, prepare_s, peak = _ask(pipe, "end")
            step_s, wall_s = (median(column) for column in zip(*times[way], strict=True))
            ways[str(way)] = MergeFigures(tokens, step_s, wall_s, prepare_s, peak / 2**20)
    finally:
        for process, _ in children.values():
            process.join(10)
            process.kill()
    return _result(kind, ways, fixed_s)


def _ask(pipe: Connection, what: str) -> tuple[Any, ...]:
    pipe.send(what)
    if not pipe.poll(PATIENCE_S):
        raise RuntimeError(f"no answer to {what!r} within {PATIENCE_S:.0f} s")
    answer: tuple[Any, ...] = pipe.recv()
    return answer


def _result(kind: str, ways: dict[str, MergeFigures], fixed_s: float) -> TreeResult:
    share = 1.0 - min(fixed_s / ways[Merging.NONE].step_s, 1.0)
    merged = ways[Merging.NONE].tokens / ways[Merging.TREE].tokens
    return TreeResult(kind, ways, fixed_s, share, 1.0 / (1.0 - share + share / merged))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS), help="shapes of episodes, with turns")
    parser.add_argument("--scale", type=int, default=1, help="this many times more tokens in every part")
    parser.add_argument("--repeats", type=int, default=3, help="measured steps of each way")
    parser.add_argument("--max-tokens-per-row", type=int, default=2048, help="budget of one forward")
    parser.add_argument("--hidden", type=int, default=256, help="hidden width of the model (random weights)")
    parser.add_argument("--layers", type=int, default=2, help="its layers")
    add_computing(parser)
    arguments = parsed(parser, kind=["growing10"], repeats=1, hidden=64, layers=1)
    with tempfile.TemporaryDirectory() as directory:
        _write_model(Path(directory), arguments.hidden, arguments.layers)
        settings = TreeSettings(
            directory, arguments.device, arguments.threads, arguments.max_tokens_per_row, arguments.scale
        )
        results = []
        for kind in arguments.kind:
            results.append(measure(kind, settings, arguments.repeats))
            sys.stderr.write(f"{kind}: {results[-1].speedup(Merging.TREE):.2f}x\n")
    _print(results)
    write_json(arguments.json, results)


def _write_model(directory: Path, hidden: int, layers: int) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(hidden // 64, 1),
        num_key_value_heads=max(hidden // 128, 1),
        head_dim=64,
        max_position_embeddings=2**18,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)


def _print(results: Sequence[TreeResult]) -> None:
    numbers = Table("kind", *(f"{way}\n{what}" for what in ("tokens", "s", "MiB") for way in WAYS), title="one step")
    ratios = Table(
        "kind", "linear\nspeed-up", "tree\nspeed-up", "tree against\nlinear", "U", "share", "bound", "tree /\nbound"
    )
    for r in results:
        columns = [[f"{w.tokens:,}", f"{w.step_s:.3f}", f"{w.peak_mib:.0f}"] for w in (r.ways[way] for way in WAYS)]
        numbers.add_row(r.kind, *(column[i] for i in range(3) for column in columns))
        linear, tree = r.speedup(Merging.LINEAR), r.speedup(Merging.TREE)
        merged = r.ways[Merging.NONE].tokens / r.ways[Merging.TREE].tokens
        cells = [linear, tree, tree / linear, merged, r.share, r.bound, tree / r.bound]
        ratios.add_row(r.kind, *(f"{cell:.2f}" for cell in cells))
    console = Console(width=120, highlight=False)
    console.print(numbers)
    console.print(ratios)


if __name__ == "__main__":
    run_command(main)
