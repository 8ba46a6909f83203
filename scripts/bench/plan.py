"""Memory of a rank by part: predicted by `tandem plan MODEL --gpus N`, and tracked in the trainer's own code.

    python -m scripts.bench.plan                        Qwen3-0.6B to 235B-A22B, 8 to 512 ranks, 8 K to 256 K tokens
    python -m scripts.bench.plan --model Qwen3-8B --ranks 16 --tp 2 --cp 4 --tokens 65536 --checkpointing
    python -m scripts.bench.plan --model Qwen3-32B --ranks 64 --pp 4 --stage 1 --rows 8 --checkpointing --layers 16
    python -m scripts.bench.plan --real                 real steps of small models by one rank and two, on processors
    python -m scripts.bench.plan --quick                a small model on 8 ranks, in seconds

Each row is a process of its own, in which one rank takes a step with tensors that have no memory (`fake_ranks.py`): no GPU is
needed. GiB; `computed` is what the forward and the backward make, with gradients that are not reduced yet. The exit status is 1
if a ratio is further from 1 than `--bound`.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

from scripts.bench.fake_ranks import tracked_step
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.real_ranks import measured_ranks, write_shape
from shared.errors import ConfigError
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import KNOWN, ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from tandem.plan.rank_memory import peak

GIB = 2**30
TRACKED = "GiB of a rank, predicted / tracked"
BOUND = 0.1  # of a ratio
PARTS = ("weights", "optimizer", "gradients", "gathered", "computed", "peak")
TRAINED_SHARE = 2  # of a row's tokens every second is trained
SMALL = ModelShape(
    name="26M", layers=6, hidden=512, heads=8, key_heads=4, head_width=64, inner=1536, vocabulary=16000, tied=True
)
MIXTURE = ModelShape(
    name="28M, 8 experts", layers=6, hidden=384, heads=8, key_heads=4, head_width=48, inner=768, vocabulary=8000,
    tied=True, experts=8, experts_per_token=2, expert_width=384,
)  # fmt: skip
OneCase = TypeVar("OneCase")
Case = tuple[ModelShape, Layout, TrainedAs, TrainedRow, int]  # the last: the stage whose first rank is tracked


def case(model: str, layout: Layout, tokens: int, *, lora_rank: int = 0, stage: int = 0, **row: bool | int) -> Case:
    """`row`: further fields of `TrainedRow`."""
    planned = TrainedRow(tokens=tokens, trained_tokens=tokens // TRAINED_SHARE, **row)  # type: ignore[arg-type]  # each by name
    return KNOWN[model], layout, TrainedAs(lora_rank=lora_rank), planned, stage


def published() -> list[Case]:
    """Those of docs/run/gpus.md. Of several rows in a step, so many of each part of the data."""
    again = {"checkpointing": True}
    many = {"checkpointing": True, "rows": 8}
    each = {**many, "reduces_each": True}
    stages_of_32b, large = Layout(ranks=32, pp=2), Layout(ranks=512, pp=4, ep=8)
    return [
        case("Qwen3-0.6B", Layout(ranks=8), 8192),
        case("Qwen3-1.7B", Layout(ranks=8), 8192),
        case("Qwen3-4B", Layout(ranks=8), 32768, **again),
        case("Qwen3-8B", Layout(ranks=8), 8192, **again),
        case("Qwen3-8B", Layout(ranks=8), 8192, **many),
        case("Qwen3-8B", Layout(ranks=8), 8192, **each),
        case("Qwen3-8B", Layout(ranks=8), 32768, lora_rank=16, **again),
        case("Qwen3-8B", Layout(ranks=16, cp=8), 262144, **again),
        case("Qwen3-14B", Layout(ranks=16, tp=2), 16384, **again),
        case("Qwen3-32B", Layout(ranks=64, tp=8), 32768, **again),
        case("Qwen3-32B", Layout(ranks=64, tp=8, cp=8), 262144, **again),
        case("Qwen3-32B", stages_of_32b, 8192, **many),
        case("Qwen3-32B", stages_of_32b, 8192, stage=1, **many),
        case("Qwen3-32B", stages_of_32b, 8192, stage=1, **each),
        case("Qwen3-32B", Layout(ranks=64, pp=2, cp=8), 131072, **each),
        case("Qwen3-32B", Layout(ranks=64, pp=2, cp=8), 131072, stage=1, **each),
        case("Qwen3-30B-A3B", Layout(ranks=16), 8192, **again),
        case("Qwen3-30B-A3B", Layout(ranks=32, cp=4), 131072, **again),
        case("Qwen3-30B-A3B", Layout(ranks=16, ep=8), 8192, **each),
        case("Qwen3-30B-A3B", Layout(ranks=16, ep=8, cp=4), 131072, **again),
        case("Qwen3-235B-A22B", Layout(ranks=64, tp=4), 8192, **again),
        case("Qwen3-235B-A22B", Layout(ranks=128), 16384, **again),
        case("Qwen3-235B-A22B", Layout(ranks=128, ep=8), 16384, **again),
        case("Qwen3-235B-A22B", Layout(ranks=128, ep=8), 16384, **each),
        case("Qwen3-235B-A22B", Layout(ranks=512, ep=64, cp=4), 262144, **again),
        case("Qwen3-235B-A22B", Layout(ranks=512), 8192, **again),
        case("Qwen3-235B-A22B", Layout(ranks=512, tp=4, cp=16), 262144, **again),
        *(case("Qwen3-235B-A22B", large, 8192, stage=stage, **many) for stage in (0, 1, 3)),
        case("Qwen3-235B-A22B", large, 8192, **each),
    ]


def measure(options: Options) -> Tables:
    if options.real:
        return {"MiB of a rank, predicted and measured": real_rows(options.folder / "model")}
    cases = [given(options)] if options.model else published()
    return {TRACKED: with_progress(cases, lambda one: [in_a_process(one)])}


def in_a_process(one: Case) -> Row:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(row_of, one).result()


def with_progress(cases: Sequence[OneCase], measured: Callable[[OneCase], list[Row]]) -> list[Row]:
    """All rows, with a bar; each is printed when it is there, since the last ones take minutes."""
    rows = []
    with Progress(console=Console(stderr=True, width=200, highlight=False)) as progress:
        task = progress.add_task("rows", total=len(cases))
        for one in cases:
            for row in measured(one):
                progress.console.print("  ".join(f"{name} {value}" for name, value in row.items()))
                rows.append(row)
            progress.advance(task)
    return rows


def outside(tables: Tables, options: Options) -> str | None:
    """Rows whose prediction is further from what was found than the bound."""
    ratios = [float(row["ratio"]) for rows in tables.values() for row in rows]
    wrong = [f"{ratio:.3f}" for ratio in ratios if abs(ratio - 1) > options.bound]
    return f"{len(wrong)} of {len(ratios)} ratios: {', '.join(wrong)}; expected 1 ± {options.bound}" if wrong else None


def given(options: Options) -> Case:
    layout = Layout(ranks=options.ranks, tp=options.tp, cp=options.cp, pp=options.pp, ep=options.ep)
    shape, layout, trained, row, stage = case(
        options.model,
        layout,
        options.tokens,
        lora_rank=options.lora_rank,
        stage=options.stage,
        rows=options.rows,
        checkpointing=options.checkpointing,
        reduces_each=options.reduce_each_row,
    )
    return replace(shape, layers=options.layers or shape.layers), layout, trained, row, stage


def row_of(one: Case) -> Row:
    """In this process."""
    shape, layout, trained, row, stage = one
    what = f"{shape.name}{f' r={trained.lora_rank}' if trained.lora_rank else ''}"
    together = f"{layout.tp}, {layout.cp}, {layout.pp}, {layout.ep}"
    settings = {"checkpointing": row.checkpointing, "reduce_each_row": row.reduces_each}
    columns: Row = {"model": what, "ranks": layout.ranks, "tp, cp, pp, ep": together, "stage": stage}
    columns |= {
        "rows": row.rows,
        "tokens": row.tokens,
        "settings": ", ".join(name for name, on in settings.items() if on),
    }
    began = time.process_time()
    try:
        tracked, predicted = tracked_step(*one), peak(*one)
    except ConfigError as exc:  # a layout that the trainer does not take is shown, and has no ratio
        texts = dict.fromkeys(PARTS, "") | {"peak": f"refused: {exc}"}
        return {**columns, **texts, "ratio": math.nan, "CPU s": time.process_time() - began}
    computed = predicted.activations + predicted.logits + predicted.working
    pairs = {
        "weights": (predicted.weights, tracked.weights),
        "optimizer": (predicted.optimizer, tracked.optimizer),
        "gradients": (predicted.gradients, tracked.gradients),
        "gathered": (predicted.gathered, tracked.gathered),
        "computed": (computed, tracked.activations + tracked.working),
        "peak": (predicted.total, tracked.total),
    }
    texts = {name: f"{ours / GIB:,.2f} / {theirs / GIB:,.2f}" for name, (ours, theirs) in pairs.items()}
    return {**columns, **texts, "ratio": predicted.total / tracked.total, "CPU s": time.process_time() - began}


def described(shape: ModelShape, layout: Layout, row: TrainedRow, stage: int) -> Row:
    """The first columns of a row."""
    sizes = f"{layout.tp}, {layout.cp}, {layout.pp}, {layout.ep}"
    settings = {"checkpointing": row.checkpointing, "reduce_each_row": row.reduces_each}
    columns: Row = {"model": shape.name, "ranks": layout.ranks, "tp, cp, pp, ep": sizes, "stage": stage}
    return columns | {
        "rows": row.rows,
        "tokens": row.tokens,
        "settings": ", ".join(n for n, on in settings.items() if on),
    }


def real_rows(folder: Path) -> list[Row]:
    """Steps of float32 models by one process and two, which share data, layers, rows or experts."""
    row = TrainedRow(tokens=1024, trained_tokens=512, mixed=False, on_cpu=True)
    several = replace(row, rows=3)
    cases = [
        (SMALL, Layout(ranks=1), row),
        (SMALL, Layout(ranks=2), row),
        (SMALL, Layout(ranks=2), replace(row, checkpointing=True)),
        (SMALL, Layout(ranks=2), several),
        (SMALL, Layout(ranks=2), replace(several, reduces_each=True)),
        (SMALL, Layout(ranks=2, tp=2), row),
        (SMALL, Layout(ranks=2, cp=2), row),
        (SMALL, Layout(ranks=2, pp=2), replace(row, rows=4)),
        (MIXTURE, Layout(ranks=2), row),
        (MIXTURE, Layout(ranks=2, ep=2), row),
        (MIXTURE, Layout(ranks=2, ep=2), replace(row, checkpointing=True)),
    ]

    def measured(one: tuple[ModelShape, Layout, TrainedRow]) -> list[Row]:
        shape, layout, planned = one
        place = folder / shape.name
        if not place.exists():
            write_shape(place, shape)
        ranks, rows = measured_ranks(place, layout, planned), list[Row]()
        for stage in range(layout.pp):
            own = ranks[stage * layout.stage_ranks : (stage + 1) * layout.stage_ranks]
            largest = max(own, key=lambda rank: rank.peak)
            ours = peak(shape, layout, TrainedAs(), replace(planned, received=largest.received), stage).total
            figures = {"received": largest.received, "predicted": ours / 2**20, "measured": largest.peak / 2**20}
            rows.append({**described(shape, layout, planned, stage), **figures, "ratio": ours / largest.peak})
        return rows

    return with_progress(cases, measured)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--model", choices=KNOWN, help="one row, of this model; the published ones without it")
    parser.add_argument("--layers", type=int, help="so many of its layers")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tp", type=int, default=1, help="tp_size")
    parser.add_argument("--cp", type=int, default=1, help="cp_size")
    parser.add_argument("--pp", type=int, default=1, help="pp_size")
    parser.add_argument("--ep", type=int, default=1, help="ep_size")
    parser.add_argument("--stage", type=int, default=0, help="whose first rank is tracked")
    parser.add_argument("--rows", type=int, default=1, help="of a part of the data in one step")
    parser.add_argument("--reduce_each_row", action="store_true", help="with that setting")
    parser.add_argument("--bound", type=float, default=BOUND, help="of a ratio's distance from 1")
    parser.add_argument("--tokens", type=int, default=8192, help="of the row")
    parser.add_argument("--lora_rank", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true", help="with activation_checkpointing")
    parser.add_argument("--real", action="store_true", help="real steps on this machine instead")
    run_benchmark(parser, measure, decimals=3, width=200, verdict=outside, model="Qwen3-0.6B", layers=2, tokens=1024)
