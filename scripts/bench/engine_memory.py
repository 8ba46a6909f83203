"""Memory of the local engine: what it holds after its start and after each wave of requests, and how fast each wave is. The first
waves write to parts of the cache that were never written to.

    python -m scripts.bench.engine_memory [--model-path DIR] [--context 8192] [--concurrency 32] [--waves 3] [--against FOLDER]
                                          [--json FILE] [--quick]

Without --model-path: random weights of the shape of SmolLM2-135M. `--against` names another working copy of this repository,
whose engine is measured after this one's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from scripts.bench.engine import wait_until_ready
from scripts.bench.results import add_json, parsed, show, write_json
from shared.processes.interrupt import run_command
from shared.processes.mongod import free_port

ROOT = Path(__file__).parents[2]
PROMPT_TOKENS, VOCABULARY = 100, 256  # ids of the prompts, which every model has
MB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path)
    parser.add_argument("--vocabulary", type=int, default=49_152, help="of random weights (default: %(default)s)")
    parser.add_argument("--context", type=int, default=8192, help="of the engine (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests of a wave (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=64, help="of a request (default: %(default)s)")
    parser.add_argument("--waves", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--against", type=Path, help="another working copy")
    add_json(parser)
    args = parsed(parser, vocabulary=512, concurrency=2, new_tokens=4, waves=1)
    with tempfile.TemporaryDirectory() as folder:
        model = (args.model_path or make_model(Path(folder), args.vocabulary)).resolve()
        trees = [ROOT, *([args.against.resolve()] if args.against else [])]
        rows = [row for tree in trees for row in asyncio.run(measure(tree, model, args))]
    show(rows)
    write_json(args.json, rows)


def make_model(folder: Path, vocabulary: int) -> Path:
    """Random weights of the shape of SmolLM2-135M, with a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


async def measure(tree: Path, model: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    port = free_port()
    command = [sys.executable, "-m", "sampler.engine.local", "--model-path", str(model), "--port", str(port)]
    options = ["--context-length", str(args.context), "--num-threads", "1", "--log-level", "warning"]
    child = subprocess.Popen([*command, *options], cwd=tree)  # noqa: ASYNC220  # nothing runs yet that it could hold up
    rows = []
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
            await wait_until_ready(client, child)
            rows.append(row(tree, "start", child.pid, 0.0))
            for wave in range(args.waves):
                prompts = [random.choices(range(VOCABULARY), k=PROMPT_TOKENS) for _ in range(args.concurrency)]
                began = time.perf_counter()
                await asyncio.gather(*(generate(client, prompt, args.new_tokens) for prompt in prompts))
                seconds = time.perf_counter() - began
                rows.append(row(tree, f"wave {wave + 1}", child.pid, args.concurrency * args.new_tokens / seconds))
    finally:
        child.terminate()
        child.wait(10)
    return rows


async def generate(client: httpx.AsyncClient, prompt: list[int], new_tokens: int) -> None:
    params = {"max_new_tokens": new_tokens, "temperature": 1.0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
    answer = (await client.post("/generate", json=body)).raise_for_status().json()
    assert len(answer["output_ids"]) == new_tokens


def row(tree: Path, after: str, pid: int, tokens_per_s: float) -> dict[str, Any]:
    engine = psutil.Process(pid)
    cpu = engine.cpu_times()
    resident_mb = engine.memory_info().rss / MB
    return {
        "tree": tree.name,
        "after": after,
        "resident MB": resident_mb,
        "tokens/s": tokens_per_s,
        "system CPU s": cpu.system,
    }


if __name__ == "__main__":
    run_command(main)
