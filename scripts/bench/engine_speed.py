"""Compares the sampling speed of engines on this machine's processors with that of transformers' `generate`, in one run.

    python -m scripts.bench.engine_speed --model .models/smollm2-135m-instruct           all that are installed
    python -m scripts.bench.engine_speed --engines vllm --dtypes bfloat16 --json bench.json
    python -m scripts.bench.engine_speed --quick                                         the bundled model, in seconds

Engines and `generate` are processes of their own that stay up, and sleep between their turns (a, b, c, a, …): what else runs on
the machine slows all of them. Each round is one burst of `--requests` different prompts with `--tokens` new tokens each, at
temperature 1, and a reply of an engine has the log-prob of each token. The figure is the best round's sampled tokens a second,
prompts included; `ratio`: to `generate` in bfloat16 with as many requests.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sampler.core.engines.client.engine_client import EngineClient
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.started_engines import ROOT, EngineSetting, installed, running
from shared.errors import TandemError
from tandem.launch.threads import SLEEPING

DTYPES = ("float32", "bfloat16")
PLAIN = "transformers"
Burst = Callable[[Sequence[list[int]]], Coroutine[Any, Any, float]]  # prompts -> seconds until all replies are there


async def measure(options: Options) -> Tables:
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), **SLEEPING}
    counts = sorted(options.requests)
    prompts = prompts_of(options.model, counts[-1])
    best: dict[tuple[str, str, int], float] = {}
    with ExitStack() as opened:
        bursts = {
            (setting.kind, setting.dtype): served(
                opened.enter_context(running(setting, options.model, options.folder)), options.tokens
            )
            for setting in settings_of(options, counts[-1])
        }
        for dtype in options.dtypes.split(","):
            bursts[PLAIN, dtype] = opened.enter_context(Plain(options.model, dtype, options)).burst
        for burst in bursts.values():
            await burst(prompts)  # compiled, loaded, cached
        for _ in range(options.rounds):
            for count in counts:
                for (kind, dtype), burst in bursts.items():
                    speed = count * options.tokens / await burst(prompts[:count])
                    best[kind, dtype, count] = max(speed, best.get((kind, dtype, count), 0.0))
    rows: list[Row] = []
    for kind, dtype in bursts:
        row: Row = {"engine": kind, "data type": dtype}
        for count in counts:
            row[f"{count}, tokens/s"] = best[kind, dtype, count]
            reference = best.get((PLAIN, "bfloat16", count))
            row[f"{count}, ratio"] = best[kind, dtype, count] / reference if reference else "-"
        rows.append(row)
    return {f"sampled tokens/s, {options.tokens} of each request, {options.threads} threads": rows}


def settings_of(options: Options, most: int) -> list[EngineSetting]:
    found = []
    for kind in options.engines.split(","):
        if not installed(kind):
            print(f"{kind} is not installed, and left out: scripts/{kind}_cpu.sh install", file=sys.stderr)
            continue
        for dtype in options.dtypes.split(","):
            if kind != "local" or dtype == "float32":
                found.append(EngineSetting(kind, dtype, "chunks, cache", most))
    return found


def prompts_of(model: Path, count: int) -> list[list[int]]:
    """Different short questions, as chats where the model has a chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    questions = [f"What is {at} plus {2 * at + 1}? Answer with a number." for at in range(count)]
    if tokenizer.chat_template is not None:
        chats = [[{"role": "user", "content": question}] for question in questions]
        questions = [
            str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)) for chat in chats
        ]
    ids: list[list[int]] = tokenizer(questions, add_special_tokens=False)["input_ids"]
    return ids


def served(url: str, tokens: int) -> Burst:
    async def burst(prompts: Sequence[list[int]]) -> float:
        params = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
        async with EngineClient() as client:
            start = time.perf_counter()
            replies = await asyncio.gather(
                *(client.generate(url, ids, params, f"{start}-{at}") for at, ids in enumerate(prompts))
            )
            took = time.perf_counter() - start
        if any(len(reply.logprobs) != tokens for reply in replies):
            raise TandemError(f"{url}: a reply has other than {tokens} log-probs")
        return took

    return burst


class Plain:
    """transformers' `generate`, padded on the left, in a process of its own."""

    def __init__(self, model: Path, dtype: str, options: Options) -> None:
        context = get_context("spawn")
        self._parent, self._child = context.Pipe()
        self._process = context.Process(
            target=_generate, args=(self._child, model, dtype, options.tokens, options.threads), daemon=True
        )

    def __enter__(self) -> "Plain":
        self._process.start()
        self._child.close()  # so that its death ends a wait for it
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._parent.send(None)
        self._process.join()

    async def burst(self, prompts: Sequence[list[int]]) -> float:
        return await asyncio.to_thread(self._burst, list(prompts))

    def _burst(self, prompts: list[list[int]]) -> float:
        self._parent.send(prompts)
        return float(self._parent.recv())


def _generate(pipe: Connection, model: Path, dtype: str, tokens: int, threads: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(threads)
    plain: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    while (prompts := pipe.recv()) is not None:
        length = max(map(len, prompts))
        ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
        attended = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        start = time.perf_counter()
        with torch.inference_mode():
            plain.generate(
                input_ids=ids, attention_mask=attended, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0,
            )  # fmt: skip
        pipe.send(time.perf_counter() - start)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        default=ROOT / "assets" / "example" / "model",
        help="checkpoint (default: the bundled model)",
    )
    parser.add_argument("--engines", default="local,vllm,sglang", help="(default: %(default)s)")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32], help="at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of each reply (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each process (default: %(default)s)")
    run_benchmark(parser, measure, engines="local", requests=[1, 2], tokens=4, rounds=1, threads=1)
