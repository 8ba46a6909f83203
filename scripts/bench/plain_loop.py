"""Compares the training step with a tuned loop over transformers: CPU seconds and peak memory, by turns.

    python -m scripts.bench.plain_loop                                       all kinds; some five minutes on one core
    python -m scripts.bench.plain_loop --kind nothing_shared --threads 2 --json bench.json
    python -m scripts.bench.plain_loop --model .models/smollm2-135m-instruct --kind nothing_shared --repeats 2
    python -m scripts.bench.plain_loop --quick                               one kind and a tiny model, in seconds

    trees    our learner as it is                  linear   our learner with prefix_trees: false
    loop     a plain loop as a careful person writes it: sequences that continue each other are one, sorted by length,
             padded in micro-batches of at most `--padded` tokens (a longer sequence alone, without padding); SDPA, logits of
             trained positions alone, one forward and backward for each micro-batch, clipped gradients, AdamW

All three take the same update (cross-entropy, mean over tokens): `norm` is that of their gradients. Each is a process, and they
step in turns; medians of user and system time are compared. `peak`: the most memory of any step but the first beyond what
was resident before the model was loaded. `time`, `memory`: ours as a part of the loop's.
"""

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.synthetic import add_computing, group, growing, rewritten, unrelated, write_model
from scripts.bench.turns import answer, processes_by_turns
from shared.tokens.record_tree import RecordTree
from trainer.losses import Denominators, LossConfig, LossName
from trainer.process.parallel import parallel_session
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import Row as PackedRow
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

SHAPES: dict[str, Callable[[], list[list[RecordTree]]]] = {  # groups of records
    "nothing_shared": lambda: [[record] for record in unrelated(16, least=96, most=512)],
    "one_growing": lambda: [growing(10, prompt=64, reply=48, observation=80)],
    "long_growing": lambda: [growing(20, prompt=64, reply=48, observation=144)],
    "group8": lambda: [group(8, 4, prompt=512, reply=24, observation=24)],
    "rewritten30": lambda: [rewritten(30, prompt=64, reasoning=20, answer=4, observation=24)],
}
Step = Callable[[], float]  # returns the gradient's norm
CONFIG = OptimizerConfig(learning_rate=1e-6)


def measure(options: Options) -> Tables:
    if options.model is None:
        options.model = options.folder / "model"
        heads = max(options.hidden // 64, 1)
        write_model(
            options.model, hidden_size=options.hidden, intermediate_size=3 * options.hidden, head_dim=64,
            num_hidden_layers=options.layers, num_attention_heads=heads, num_key_value_heads=max(heads // 2, 1),
        )  # fmt: skip
    steps, ratios = [], []
    for kind in options.kind:
        of_kind = by_turns(kind, options)
        steps += of_kind
        *ours, loop = of_kind
        ratios += [
            {"kind": kind, "ours": row["way"]}
            | {"time": row["CPU s"] / loop["CPU s"], "memory": row["peak MiB"] / loop["peak MiB"]}
            for row in ours
        ]
    return {"one step": steps, "ours / a tuned plain loop": ratios}


def by_turns(kind: str, options: Options) -> list[Row]:
    ways = {"trees": ours_process, "linear": ours_process, "loop": loop_process}
    targets = {name: (target, (kind, name, options)) for name, target in ways.items()}
    with processes_by_turns(targets) as pipes:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, pipe in pipes.items():
                (cpu_s,) = answer(pipe, "step")
                if repeat > 0:  # the first one warms up
                    times[name].append(cpu_s)
        ends = {name: answer(pipe, "end") for name, pipe in pipes.items()}
    return [
        {"kind": kind, "way": name, "tokens": tokens, "forwards": forwards}
        | {"CPU s": median(times[name]), "least s": min(times[name]), "peak MiB": peak / 2**20, "norm": norm}
        for name, (tokens, forwards, peak, norm) in ends.items()
    ]


def ours_process(pipe: Connection, kind: str, name: str, options: Options) -> None:
    """As `_serve` answers."""
    with parallel_session("cpu", options.threads) as parallel:
        before = reset_peak(parallel.device)
        settings = LearnerOptions(dtype=options.dtype, prefix_trees=name == "trees")
        loss = LossConfig(loss=LossName.CROSS_ENTROPY)
        learner = open_learner(options.model, loss, CONFIG, parallel, settings)
        trees = [merge(g, merging=Merging.LINEAR if learner.linear else Merging.TREE) for g in SHAPES[kind]()]
        rows = pack(
            trees, options.max_tokens_per_row, one_sequence_per_row=learner.linear, short_rows=learner.short_rows
        )
        counts = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
        tokens = sum(row.num_tokens for row in rows)
        _serve(pipe, lambda: learner.step(rows, counts).metrics["learner/grad_norm"], before, (tokens, len(rows)))


def loop_process(pipe: Connection, kind: str, _: str, options: Options) -> None:
    """As `_serve` answers."""
    torch.set_num_threads(options.threads)
    before = reset_peak(torch.device("cpu"))
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype, attn_implementation="sdpa").eval()
    trees = [merge(g, merging=Merging.LINEAR) for g in SHAPES[kind]()]
    rows = pack(trees, 1, one_sequence_per_row=True)
    batches = micro_batches(rows, options.padded)
    trained = sum(row.num_entries for row in rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=CONFIG.learning_rate, weight_decay=CONFIG.weight_decay)

    def step() -> float:
        for batch in batches:
            (loss_of(model, batch) / trained).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    tokens = sum(max(row.num_tokens for row in batch) * len(batch) for batch in batches)
    _serve(pipe, step, before, (tokens, len(batches)))


def micro_batches(rows: Sequence[PackedRow], padded: int) -> list[list[PackedRow]]:
    """Sequences of like length, at most `padded` tokens with their padding, or one sequence."""
    batches: list[list[PackedRow]] = []
    for row in sorted(rows, key=lambda row: row.num_tokens):
        if batches and (len(batches[-1]) + 1) * row.num_tokens <= padded:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def loss_of(model: PreTrainedModel, batch: Sequence[PackedRow]) -> Tensor:
    """The sum of −log p of the trained tokens."""
    targets = torch.cat([row.ids_N[row.node_E] for row in batch])
    if len(batch) == 1:
        hidden = model.base_model(input_ids=batch[0].ids_N[None], use_cache=False).last_hidden_state[0]
        chosen = hidden[batch[0].node_E - 1]
    else:
        ids, mask = (
            torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)
            for columns in ([row.ids_N for row in batch], [torch.ones_like(row.ids_N) for row in batch])
        )
        hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        chosen = torch.cat([hidden[index, row.node_E - 1] for index, row in enumerate(batch)])
    logits = model.get_output_embeddings()(chosen)
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")


def _serve(pipe: Connection, step: Step, before: int, sizes: tuple[int, int]) -> None:
    """Answers each "step" with its CPU seconds, and "end" with (tokens, forwards, peak bytes, norm of the first gradient)."""
    device = torch.device("cpu")
    norms: list[float] = []
    for _ in iter(pipe.recv, "end"):
        if len(norms) == 1:  # the optimizer's states are there; what loading took is not counted
            reset_peak(device)
        started = time.process_time()
        norms.append(step())
        pipe.send((time.process_time() - started,))
    pipe.send((*sizes, peak_bytes(device) - before, norms[0]))


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--kind", choices=SHAPES, nargs="+", default=list(SHAPES), help="shapes of episodes")
    parser.add_argument("--repeats", type=int, default=5, help="measured steps of each way")
    parser.add_argument("--padded", type=int, default=512, help="the loop's tokens of a micro-batch")
    parser.add_argument("--max-tokens-per-row", type=int, default=2048, help="our budget of one forward")
    parser.add_argument("--model", type=Path, default=None, help="a checkpoint (default: random weights of --hidden)")
    parser.add_argument("--hidden", type=int, default=256, help="hidden width of the model (random weights)")
    parser.add_argument("--layers", type=int, default=4, help="its layers")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of both")
    add_computing(parser)
    run_benchmark(parser, measure, decimals=3, kind=["one_growing"], repeats=1, hidden=64, layers=1)
