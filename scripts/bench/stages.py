"""How evenly a model is cut into stages: the processor time of each stage's forward and backward, by two ways to cut.

    python -m scripts.bench.stages [--layers 24 --width 896 --vocabulary 151936] [--stages 2,4] [--rounds 3] [--json F] [--quick]

    parameters     stages of about equally many parameters: what the trainer did before
    operations     the slowest stage does as few operations as can be (shared/weights/stage_starts.py): what it does

Each stage computes the same row alone in this process, on made-up hidden states, by turns with the other cut's; the least of all
rounds counts. `slowest/mean` is how much longer a step takes than with even stages. `idle %` is what a process waits of a step of
`--rows` rows, by these times: 1 − m · mean / ((m + p − 1) · slowest); `even %`, (p − 1) / (m + p − 1), is what it would wait with
even stages. `GiB` is the largest stage's parameters. The default is a Qwen2.5-0.5B, and a row of four turns.
"""

import copy
import dataclasses
import gc
import time
from itertools import pairwise
from unittest.mock import patch

import torch
import torch.distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM

from scripts.bench.harness import Options, Tables, command_line, run_benchmark
from scripts.bench.harness import Row as Figures
from scripts.bench.synthetic import growing
from shared.weights.stage_starts import Cost, ModelCosts, stage_starts
from trainer.modeling import pipeline_parallel
from trainer.modeling.attention import dense_mask
from trainer.modeling.forward import Forwarded, TreeLM, forward_stage
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.modeling.stage_costs import stage_costs
from trainer.process.parallel import Parallel, parallel_session
from trainer.process.peers import Peers, Pipeline
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

ENDS = (("embed_tokens",), ("norm",))
CUTS = ("parameters", "operations")


def measure(options: Options) -> Tables:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=options.vocabulary,
            hidden_size=options.width,
            intermediate_size=options.intermediate,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 64,
            num_key_value_heads=1,
            head_dim=64,
            tie_word_embeddings=True,
        )
    ).train()
    (row,) = pack([merge(growing(4, prompt=options.prompt, reply=options.reply, observation=16))], 10**6)
    rows = []
    with parallel_session("cpu") as parallel:
        for stages in map(int, options.stages.split(",")):
            times = {cut: [float("inf")] * stages for cut in CUTS}
            for _ in range(options.rounds):
                for number in range(stages):
                    for cut in CUTS:
                        taken = stage_time(model, row, number, stages, cut, parallel)
                        times[cut][number] = min(times[cut][number], taken)
            rows += [figures(model, cut, times[cut], options.rows) for cut in CUTS]
    return {f"a row of {row.num_tokens} tokens, {row.num_entries} of them trained": rows}


def figures(model: Qwen3ForCausalLM, cut: str, times: list[float], num_rows: int) -> Figures:
    stages, slowest, mean = len(times), max(times), sum(times) / len(times)
    costs = costs_by(cut, stage_costs(model, *ENDS))
    starts = stage_starts(costs, stages)
    held = [sum(layer.parameters for layer in costs.layers[start:end]) for start, end in pairwise(starts)]
    held[0] += costs.first.parameters
    held[-1] += costs.last.parameters
    rounds = num_rows + stages - 1
    return {
        "stages": stages,
        "cut by": cut,
        "layers": "+".join(str(end - start) for start, end in pairwise(starts)),
        "CPU s": " ".join(f"{taken:.2f}" for taken in times),
        "slowest/mean": slowest / mean,
        "idle %": 100 * (1 - num_rows * mean / (rounds * slowest)),
        "even %": 100 * (stages - 1) / rounds,
        "GiB": 4 * max(held) / 2**30,
    }


def costs_by(cut: str, costs: ModelCosts) -> ModelCosts:
    if cut == "operations":
        return costs
    layers, first, last = costs
    alike = [Cost(cost.parameters, cost.parameters) for cost in (*layers, first, last)]
    return ModelCosts(alike[:-2], *alike[-2:])


# 6 parameters: one stage of one cut
def stage_time(model: Qwen3ForCausalLM, row: Row, number: int, stages: int, cut: str, parallel: Parallel) -> float:
    """Seconds of the processor for one forward and backward, after one that is not counted."""
    own = copy.deepcopy(model)
    own.tie_weights()
    group = dist.group.WORLD
    assert group is not None, "of the session"
    device = parallel.device
    pipeline = Pipeline(Peers(number, stages, device), Peers(0, 1, device), group, group)
    with patch.object(pipeline_parallel, "stage_costs", lambda *given: costs_by(cut, stage_costs(*given))):
        stage = cut_stages(own, dataclasses.replace(parallel, pipeline=pipeline), dtype=torch.float32)
    gc.collect()
    lm = TreeLM(own, stage=stage)
    hidden = None if number == 0 else torch.randn(1, row.num_tokens, model.config.hidden_size, requires_grad=True)
    started = 0.0
    for _ in range(2):
        started = time.process_time()
        result = forward_stage(lm, row, hidden, chunk=512, attn=dense_mask, with_entropy=False)
        (result.logprob_E if isinstance(result, Forwarded) else result.hidden).sum().backward()
    return time.process_time() - started


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--layers", type=int, default=24, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=896, help="a multiple of 64 (default: %(default)s)")
    parser.add_argument("--intermediate", type=int, default=4864, help="(default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=151936, help="(default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens before the first reply (default: %(default)s)")
    parser.add_argument("--reply", type=int, default=48, help="tokens of each reply (default: %(default)s)")
    parser.add_argument("--stages", default="2,4", help="numbers of stages (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8, help="of a step, for the idle share (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    run_benchmark(
        parser, measure, layers=4, width=64, intermediate=128, vocabulary=2048, prompt=8, reply=8, stages="2", rounds=1
    )


if __name__ == "__main__":
    main()
