"""Memory of a rank by part: predicted by `tandem plan MODEL --gpus N`, and tracked in the trainer's own code.

    python -m scripts.bench.plan                        Qwen3-0.6B to 235B-A22B, 8 to 512 ranks, 8 K to 256 K tokens
    python -m scripts.bench.plan --model Qwen3-8B --ranks 16 --tp 2 --cp 4 --tokens 65536 --checkpointing
    python -m scripts.bench.plan --real                 real steps of a small model by one rank and two, on processors
    python -m scripts.bench.plan --quick                a small model on 8 ranks, in seconds

Each row is a process of its own, in which rank 0 takes a step with tensors that have no memory (`fake_ranks.py`): no GPU is
needed, a row of 94 layers takes some two minutes. GiB; `computed` is what the forward and the backward make.
"""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from scripts.bench.fake_ranks import tracked_step
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.real_ranks import measured_peak, write_shape
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import KNOWN, ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from tandem.plan.rank_memory import peak

GIB = 2**30
TRAINED_SHARE = 2  # of a row's tokens every second is trained
SMALL = ModelShape(
    name="94M", layers=8, hidden=768, heads=12, key_heads=4, head_width=64, inner=2304, vocabulary=32000, tied=True
)
Case = tuple[ModelShape, Layout, TrainedAs, TrainedRow]


def case(model: str, sizes: tuple[int, int, int], tokens: int, *, checkpointing: bool, lora_rank: int = 0) -> Case:
    """`sizes`: ranks, tp_size, cp_size."""
    ranks, tp, cp = sizes
    row = TrainedRow(tokens=tokens, trained_tokens=tokens // TRAINED_SHARE, checkpointing=checkpointing)
    return KNOWN[model], Layout(ranks=ranks, tp=tp, cp=cp), TrainedAs(lora_rank=lora_rank), row


def published() -> list[Case]:
    """Those of docs/run/gpus.md."""
    return [
        case("Qwen3-0.6B", (8, 1, 1), 8192, checkpointing=False),
        case("Qwen3-1.7B", (8, 1, 1), 8192, checkpointing=False),
        case("Qwen3-4B", (8, 1, 1), 32768, checkpointing=True),
        case("Qwen3-8B", (8, 1, 1), 8192, checkpointing=True),
        case("Qwen3-8B", (8, 1, 1), 32768, checkpointing=True, lora_rank=16),
        case("Qwen3-8B", (16, 1, 8), 262144, checkpointing=True),
        case("Qwen3-14B", (16, 2, 1), 16384, checkpointing=True),
        case("Qwen3-32B", (64, 8, 1), 32768, checkpointing=True),
        case("Qwen3-32B", (64, 8, 8), 262144, checkpointing=True),
        case("Qwen3-30B-A3B", (16, 1, 1), 8192, checkpointing=True),
        case("Qwen3-30B-A3B", (32, 1, 4), 131072, checkpointing=True),
        case("Qwen3-235B-A22B", (64, 4, 1), 8192, checkpointing=True),
        case("Qwen3-235B-A22B", (128, 1, 1), 16384, checkpointing=True),
        case("Qwen3-235B-A22B", (512, 1, 1), 8192, checkpointing=True),
        case("Qwen3-235B-A22B", (512, 4, 16), 262144, checkpointing=True),
    ]


def measure(options: Options) -> Tables:
    if options.real:
        return {"MiB of a rank, predicted and measured": real_rows(options.folder / "model")}
    cases = [given(options)] if options.model else published()
    rows = []
    for one in cases:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            rows.append(process.submit(row_of, one).result())
    return {"GiB of a rank, predicted / tracked": rows}


def given(options: Options) -> Case:
    sizes, settings = (options.ranks, options.tp, options.cp), {"checkpointing": options.checkpointing}
    shape, layout, trained, row = case(options.model, sizes, options.tokens, lora_rank=options.lora_rank, **settings)
    return replace(shape, layers=options.layers or shape.layers), layout, trained, row


def row_of(one: Case) -> Row:
    """In this process."""
    shape, layout, trained, row = one
    began = time.process_time()
    tracked, predicted = tracked_step(*one), peak(*one)
    computed = predicted.activations + predicted.logits + predicted.working
    pairs = {
        "weights": (predicted.weights, tracked.weights),
        "optimizer": (predicted.optimizer, tracked.optimizer),
        "gradients": (predicted.gradients, tracked.gradients),
        "gathered": (predicted.gathered, tracked.gathered),
        "computed": (computed, tracked.activations + tracked.working),
        "peak": (predicted.total, tracked.total),
    }
    what = f"{shape.name}{f' r={trained.lora_rank}' if trained.lora_rank else ''}"
    sizes = {"model": what, "ranks": layout.ranks, "tp": layout.tp, "cp": layout.cp, "tokens": row.tokens}
    texts = {name: f"{ours / GIB:,.2f} / {theirs / GIB:,.2f}" for name, (ours, theirs) in pairs.items()}
    ratio = {"ratio": predicted.total / tracked.total, "CPU s": time.process_time() - began}
    return {**sizes, "checkpointing": row.checkpointing, **texts, **ratio}


def real_rows(folder: Path) -> list[Row]:
    """Of one rank and two, without and with checkpointed layers."""
    write_shape(folder, SMALL)
    rows = []
    for ranks in (1, 2):
        for checkpointing in (False, True):
            row = TrainedRow(tokens=2048, trained_tokens=1024, mixed=False, checkpointing=checkpointing, on_cpu=True)
            layout = Layout(ranks=ranks)
            ours, theirs = peak(SMALL, layout, TrainedAs(), row).total, measured_peak(folder, layout, row)
            figures = {"predicted": ours / 2**20, "measured": theirs / 2**20, "ratio": ours / theirs}
            rows.append({"ranks": ranks, "checkpointing": checkpointing, **figures})
    return rows


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--model", choices=KNOWN, help="one row, of this model; the published ones without it")
    parser.add_argument("--layers", type=int, help="so many of its layers")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tp", type=int, default=1, help="tp_size")
    parser.add_argument("--cp", type=int, default=1, help="cp_size")
    parser.add_argument("--tokens", type=int, default=8192, help="of the row")
    parser.add_argument("--lora_rank", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true", help="with activation_checkpointing")
    parser.add_argument("--real", action="store_true", help="real steps on this machine instead")
    run_benchmark(parser, measure, decimals=3, model="Qwen3-0.6B", layers=2, tokens=1024)
