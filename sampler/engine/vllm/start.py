"""Starts vLLM with what the contract needs: log-probs of the sampled distribution, our worker's methods, a label."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from typing import Any

from vllm import SamplingParams
from vllm.config import CacheConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from sampler.engine.vllm.engine import VllmEngine
from sampler.engine.vllm.int8 import INT8, round_to_int8
from sampler.engine.vllm.waiting import WaitingExecutor
from sampler.engine.vllm.worker import WeightsWorker
from sampler.engine.vllm.workers import Workers
from shared.errors import ConfigError
from shared.processes.run_module import ROOT

log = logging.getLogger(__name__)

CPU_CACHE_GIB = 1
WORKER = f"{WeightsWorker.__module__}.{WeightsWorker.__qualname__}"
# What the contract stands on; an option that says otherwise is refused.
_FIXED: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "worker_extension_cls": WORKER,
    "skip_tokenizer_init": False,
}


async def start_vllm(args: argparse.Namespace, others: list[str]) -> VllmEngine:
    """`others`: options of vLLM's own. Raises ConfigError."""
    sys.path.insert(0, ROOT)  # vLLM's processes get this path, and find the worker's class by it
    llm = AsyncLLM.from_engine_args(_engine_args(args, others))
    await llm.update_weight_version(args.weight_version)
    engine = VllmEngine(llm, args.model_path, args.weight_version)
    await Workers(llm).end_with_this_process()
    await _warm_up(llm)
    return engine


def _engine_args(args: argparse.Namespace, others: list[str]) -> AsyncEngineArgs:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="python -m sampler.engine.vllm"))
    defaults = {
        "max_num_seqs": args.max_running_requests,
        "disable_log_stats": not args.enable_metrics,
        "max_loras": 4,  # of one batch; with --enable-lora: the newest version, the one before it, and another policy's
        "max_cpu_loras": 16,  # in memory; vLLM reads one beyond them from its files again, which may be deleted by then
        "enable_sleep_mode": current_platform.is_cuda_alike(),
        "block_size": 32 if current_platform.is_cpu() else None,  # of a CPU 128: few prompts share so much
        # With lru, its default, workers get no pixels of images in a cached prefix; a retracted request that needs them ends it.
        "mm_processor_cache_type": "shm",
        "distributed_executor_backend": WaitingExecutor if current_platform.is_cpu() else None,
    }
    parser.set_defaults(**{name: value for name, value in (defaults | _FIXED).items() if value is not None})
    given = parser.parse_args(others)
    for name, value in _FIXED.items():
        if getattr(given, name) != value:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {getattr(given, name)}; expected {value}, which the contract needs"
            )
    given.model = str(args.model_path)
    if args.context_length is not None:
        given.max_model_len = args.context_length
    if given.quantization == INT8:
        round_to_int8(given, given.model)
    if current_platform.is_cpu():
        _bound_cache(given)
    return AsyncEngineArgs.from_cli_args(given)


def _bound_cache(given: argparse.Namespace) -> None:
    """On a CPU vLLM reserves 92 % of the machine's memory for itself, and ends where less is free; so it gets `CPU_CACHE_GIB`,
    unless its user says how much. Other processes, such as a trainer, need the rest."""
    share = given.gpu_memory_utilization
    if (
        os.environ.get("VLLM_CPU_KVCACHE_SPACE")
        or given.kv_cache_memory_bytes
        or share != CacheConfig.gpu_memory_utilization
    ):
        return
    given.kv_cache_memory_bytes = CPU_CACHE_GIB << 30
    log.info("KV cache: %d GiB; VLLM_CPU_KVCACHE_SPACE=GIB or --kv-cache-memory-bytes changes it", CPU_CACHE_GIB)


async def _warm_up(llm: AsyncLLM) -> None:
    """Its first requests compile kernels, for some 20 s on a CPU: before it says that it listens."""
    params = SamplingParams(max_tokens=3, logprobs=0, detokenize=False, ignore_eos=True)

    async def one(number: int) -> None:
        async for _ in llm.generate({"prompt_token_ids": [0, 1, 2]}, params, request_id=f"warm-up-{number}"):
            pass

    await one(0)
    await asyncio.gather(*(one(number) for number in range(1, 4)))
    await llm.reset_prefix_cache()
