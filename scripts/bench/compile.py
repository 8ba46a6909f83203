"""What compiled layers (`compile_layers`) cost and win: optimizer steps of two learners over the same rows, in turns.

    python -m scripts.bench.compile                       layers as those of the bundled model, and 512 wide
    python -m scripts.bench.compile --quick               a tiny model and short rows: mostly the compiler's half a minute
    python -m scripts.bench.compile --hidden 512 --steps 20 --json bench.json
    python -m scripts.bench.compile --device cuda --hidden 2048 --layers 16 --scale 16

Every step has another group, in rows of other lengths. Of a step, compiled is divided by not compiled, and the median of these
ratios is the result; on a CPU of CPU seconds, so that what else the machine does counts little, on a GPU of seconds. `compiling`
is what the first steps take beyond later ones, with the processes that it starts. PyTorch keeps compiled code in a folder for the
next start (TORCHINDUCTOR_CACHE_DIR); here it is a new one.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from transformers import AutoModelForCausalLM

from scripts.bench.results import add_computing, parsed, show, write_json
from scripts.bench.synthetic import VOCABULARY, group
from shared.processes.interrupt import run_command
from trainer.losses import Denominators, LossConfig
from trainer.modeling.memory import MemorySettings
from trainer.modeling.model import load_config
from trainer.process.parallel import Parallel, parallel_session
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import Learner, open_learner
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

EXAMPLE = Path(__file__).parents[2] / "assets" / "example" / "model"
FIRST = 4  # steps, short and long rows among them: on a CPU rows beyond 1024 tokens are compiled apart


@dataclass(frozen=True, slots=True)
class CompileResult:
    """Seconds are CPU seconds on a CPU. `graphs`: pieces of a layer that were compiled, forward and backward."""

    hidden: int
    layers: int
    checkpointing: bool
    tokens: int  # of a step, in the median
    plain_s: float
    compiled_s: float
    ratio: float
    compiling_s: float
    graphs: int


def measure(hidden: int, layers: int, arguments: argparse.Namespace) -> CompileResult:
    """Both learners, step by step."""
    torch.compiler.reset()
    counters.clear()
    with tempfile.TemporaryDirectory() as directory, parallel_session(arguments.device, arguments.threads) as parallel:
        _write_model(Path(directory), hidden, layers)
        plain, compiled = (_learner(Path(directory), parallel, arguments.checkpointing, on) for on in (False, True))
        seconds, tokens = [], []
        for step in range(FIRST + arguments.steps):
            rows, denominators = rows_of(step, arguments.scale, arguments.max_tokens_per_row)
            seconds.append([_seconds(learner, rows, denominators, parallel) for learner in (plain, compiled)])
            tokens.append(sum(row.num_tokens for row in rows))
    later = seconds[FIRST:]
    plain_s, compiled_s = (median(column) for column in zip(*later, strict=True))
    return CompileResult(
        hidden,
        layers,
        arguments.checkpointing,
        int(median(tokens)),
        plain_s,
        compiled_s,
        median(compiled / plain for plain, compiled in later),
        sum(compiled for _, compiled in seconds[:FIRST]) - FIRST * compiled_s,
        counters["stats"]["unique_graphs"],
    )


def rows_of(step: int, scale: int, max_tokens_per_row: int) -> tuple[list[Row], Denominators]:
    """Eight episodes of a task, of other lengths in every step; in turns some 800 and some 1600 tokens for each `scale`."""
    long = 1 + step % 2
    tree = merge(group(8, 3, prompt=scale * (90 + 7 * step), reply=scale * 18 * long, observation=scale * 18 * long))
    return pack([tree], max_tokens_per_row), Denominators.count(torch.from_numpy(tree.trained_tokens_T))


def _learner(directory: Path, parallel: Parallel, checkpointing: bool, compiled: bool) -> Learner:
    memory = MemorySettings(activation_checkpointing=checkpointing)
    return open_learner(
        directory, LossConfig(), OptimizerConfig(), parallel, compile_layers=compiled, memory=memory, with_entropy=True
    )


def _seconds(learner: Learner, rows: list[Row], denominators: Denominators, parallel: Parallel) -> float:
    """Of one step."""
    clock: Callable[[], float] = time.perf_counter if parallel.device.type == "cuda" else _cpu_seconds
    started = clock()
    learner.step(rows, denominators)
    if parallel.device.type == "cuda":
        torch.cuda.synchronize(parallel.device)
    return clock() - started


def _cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended, such as C++ compilers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _write_model(directory: Path, hidden: int, layers: int) -> None:
    """Random weights in the shape of the bundled model, scaled to this width."""
    torch.manual_seed(0)
    config = load_config(EXAMPLE)
    times = hidden / config.hidden_size
    config.vocab_size, config.max_position_embeddings = VOCABULARY, 2**18
    config.intermediate_size, config.head_dim = round(config.intermediate_size * times), 64 if times > 1 else 32
    config.num_attention_heads = hidden // config.head_dim
    config.num_key_value_heads = config.num_attention_heads // 2
    config.hidden_size, config.num_hidden_layers = hidden, layers
    config.layer_types = ["full_attention"] * layers
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 512], help="hidden widths of the model")
    parser.add_argument("--layers", type=int, default=4, help="its layers")
    parser.add_argument("--scale", type=int, default=1, help="this many times more tokens in every part")
    parser.add_argument("--steps", type=int, default=10, help="measured steps")
    parser.add_argument("--max-tokens-per-row", type=int, default=2048, help="budget of one forward")
    parser.add_argument("--checkpointing", action="store_true", help="with activation_checkpointing")
    add_computing(parser)
    arguments = parsed(parser, hidden=[64], layers=1, steps=1, max_tokens_per_row=1024)
    inductor_config.compile_threads = 1  # in this process: what another has used is known when it ends
    results = []
    for hidden in arguments.hidden:
        with tempfile.TemporaryDirectory() as kept:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = kept
            results.append(measure(hidden, arguments.layers, arguments))
        sys.stderr.write(f"{results[-1]}\n")
    show([_columns(result) for result in results], "one step", decimals=3)
    write_json(arguments.json, results)


def _columns(r: CompileResult) -> dict[str, str | float | int]:
    return {
        "hidden": r.hidden,
        "layers": r.layers,
        "checkpointed": "yes" if r.checkpointing else "no",
        "tokens": f"{r.tokens:,}",
        "plain s": r.plain_s,
        "compiled s": r.compiled_s,
        "compiled / plain": r.ratio,
        "compiling s": f"{r.compiling_s:.0f}",
        "graphs": r.graphs,
    }


if __name__ == "__main__":
    run_command(main)
