"""Speed of the local engine: starts one as a child process and measures it over HTTP, as a sampler uses it.

    python -m scripts.bench.engine [--model-path DIR] [--concurrency 1,4,16,64] [--seconds 5] [--json FILE] [--quick]

Without --model-path: a random model of the shape of the bundled one (4 layers, hidden 128, vocabulary 400). Each
request has ~60 prompt tokens, all different, and 60 new ones with log-probs. CPU is the engine's own, user + system.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from scripts.bench.results import add_json, parsed, show, write_json
from shared.processes.interrupt import run_command

PROMPT_TOKENS, NEW_TOKENS, VOCABULARY = 60, 60, 400
START_S = 600.0  # a busy machine is no failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path)
    parser.add_argument("--concurrency", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=5.0, help="per row (default: %(default)s)")
    add_json(parser)
    args = parsed(parser, concurrency="2", seconds=0.2)
    with tempfile.TemporaryDirectory() as folder:
        model_path = args.model_path or make_model(Path(folder))
        rows = asyncio.run(measure(model_path, [int(c) for c in args.concurrency.split(",")], args.seconds))
    show(rows)
    write_json(args.json, rows)


def make_model(folder: Path) -> Path:
    """A random Qwen3 of the bundled model's shape, with a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


async def measure(model_path: Path, concurrencies: list[int], seconds: float) -> list[dict[str, Any]]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "sampler.engine.local", "--model-path", str(model_path), "--port", str(port)]
    child = subprocess.Popen([*command, "--log-level", "warning"], cwd=Path(__file__).parents[2])  # noqa: ASYNC220  # nothing runs yet that it could hold up
    try:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120, limits=limits) as client:
            await wait_until_ready(client, child)
            await _load(client, 4, 0.5)  # warm-up
            return [await _row(client, psutil.Process(child.pid), c, seconds) for c in concurrencies]
    finally:
        child.terminate()
        child.wait(10)


async def wait_until_ready(client: httpx.AsyncClient, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < deadline:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.ConnectError:
            await asyncio.sleep(0.1)
    raise SystemExit("the engine did not start; see its messages above")


async def _row(client: httpx.AsyncClient, engine: psutil.Process, concurrency: int, seconds: float) -> dict[str, Any]:
    before, started = engine.cpu_times(), time.perf_counter()
    latencies = await _load(client, concurrency, seconds)
    took, after = time.perf_counter() - started, engine.cpu_times()
    tokens = len(latencies) * NEW_TOKENS
    cpu = (after.user - before.user) + (after.system - before.system)
    return {
        "requests at once": concurrency,
        "tokens/s": tokens / took,
        "requests": len(latencies),
        "median request ms": sorted(latencies)[len(latencies) // 2] * 1e3,
        "engine CPU us/token": cpu / tokens * 1e6,
        "engine cores": cpu / took,
    }


async def _load(client: httpx.AsyncClient, concurrency: int, seconds: float) -> list[float]:
    """Keep `concurrency` requests in flight; the latency of each."""
    deadline = time.perf_counter() + seconds
    latencies: list[float] = []

    async def worker() -> None:
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            prompt = [random.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS + random.randint(-10, 10))]
            params = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, "ignore_eos": True}
            body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
            answer = (await client.post("/generate", json=body)).raise_for_status().json()
            assert len(answer["output_ids"]) == NEW_TOKENS
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return latencies


if __name__ == "__main__":
    run_command(main)
