"""Bytes of a training step by part, predicted (`tandem.launch.trainer_memory`) and measured: `scripts.bench.memory --parts`.

Measured are the tensors that are there: parameters, codes, gradients, optimizer states, and all that the forward of one row saves
for its backward (each memory once). `peak`: the most memory that the process held in its second step beyond what it held before
it opened the model. Each line is a process of its own. The model has SmolLM2-135M's shape and random weights.
"""

import ctypes
import gc
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.bench.harness import Options, Row, Tables
from scripts.bench.process_memory import peak_bytes, reset_peak
from scripts.bench.synthetic import growing
from tandem.launch.trainer_memory import MemoryParts, TrainedAs, predicted
from trainer.losses import Denominators, LossConfig, LossName
from trainer.process.parallel import parallel_session
from trainer.quantize import QuantizeConfig, quantize
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.trained_parts import Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import merge

RANK = 16
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"lora_rank": RANK},
    "DoRA": {"lora_rank": RANK, "use_dora": True},
    "QLoRA": {"lora_rank": RANK, "base_quantization": "nf4"},
}
SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
}  # fmt: skip
TINY = SMOLLM2 | {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
TOKENS, FEW_TOKENS, REPLY = (
    31 * 32,
    11 * 32,
    64,
)  # 32 primes, since rows are padded to 32: what is saved of a row is what they divide


def measure_parts(options: Options) -> Tables:
    shape, tokens = (TINY, FEW_TOKENS) if options.quick else (SMOLLM2, TOKENS)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **shape)).save_pretrained(options.folder / "model")
    exact = QuantizeConfig(model_name_or_path=options.folder / "model", output_dir=options.folder / "nf4")
    quantize(exact, Console(quiet=True))
    rows = []
    for way in WAYS:
        for optim in options.optim:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
                rows.append(one.submit(row_of_parts, options.folder, way, optim, tokens).result())
    return {"MiB by part, predicted / measured": rows}


def row_of_parts(folder: Path, way: str, optim: Any, tokens: int) -> Row:
    """In this process."""
    settings: dict[str, Any] = WAYS[way]
    model = folder / ("nf4" if "base_quantization" in settings else "model")
    trainable = Trainable.model_validate(settings)
    (row,) = pack([merge(growing(1, prompt=tokens - REPLY, reply=REPLY, observation=0))], 2 * tokens)
    assert row.num_tokens == tokens
    denominators = Denominators(row.num_entries, 1, torch.tensor([row.num_entries]))
    with parallel_session("cpu", 1) as parallel:
        for library in ("peft", "bitsandbytes"):  # what they take is no part of a model
            import_module(library)
        before = reset_peak(parallel.device)
        loss, config = LossConfig(loss=LossName.CROSS_ENTROPY), OptimizerConfig(optim=optim)
        learner = open_learner(model, loss, config, parallel, LearnerOptions(trainable=trainable))
        learner.step([row], denominators)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # gives back what loading and measuring have freed
        reset_peak(parallel.device)
        with saved_bytes(tokens) as saved, gradient_bytes(learner) as gradients:
            learner.step([row], denominators)
        peak = peak_bytes(parallel.device) - before
        measured = parts_of(learner, sum(gradients), sum(saved.values()))
    expected = predicted(model, TrainedAs(optim=optim, **settings), tokens)
    both = zip(asdict(expected).items(), asdict(measured).values(), strict=True)
    texts = {name: f"{ours / 2**20:,.1f} / {theirs / 2**20:,.1f}" for (name, ours), theirs in both}
    sums = {"sum": f"{expected.total / 2**20:,.0f} / {measured.total / 2**20:,.0f}", "peak": f"{peak / 2**20:,.0f}"}
    return {"trained": way, "optim": optim, **texts, **sums}


def parts_of(learner: Learner, gradients: int, activations: int) -> MemoryParts:
    """`gradients`, `activations`: those that the step had, which it has freed."""
    parameters = dict(learner.lm.named_parameters())
    adapters = [p for name, p in parameters.items() if ".lora_" in name]
    base = [p for name, p in parameters.items() if ".lora_" not in name]
    codes = [b for name, b in learner.lm.named_buffers() if name.rpartition(".")[2] in ("codes", "scales", "levels")]
    states = [
        value
        for optimizer in learner.optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.ndim
    ]
    return MemoryParts(_bytes([*base, *codes]), _bytes(adapters), gradients, _bytes(states), activations)


def _bytes(tensors: Iterable[Tensor | nn.Parameter]) -> int:
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values())


@contextmanager
def gradient_bytes(learner: Learner) -> Iterator[list[int]]:
    """Of each optimizer, as it begins its step."""
    found: list[int] = []

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        found.append(_bytes(p.grad for p in parameters if p.grad is not None))

    hooks = [optimizer.register_step_pre_hook(count) for optimizer in learner.optimizers]
    yield found
    for hook in hooks:
        hook.remove()


@contextmanager
def saved_bytes(tokens: int) -> Iterator[dict[int, int]]:
    """{address: bytes} of the memory that the backward needs of a row of `tokens`: a weight has no multiple of them."""
    saved: dict[int, int] = {}

    def pack_one(tensor: Tensor) -> Tensor:
        if tensor.numel() and tensor.numel() % tokens == 0 and tensor.is_floating_point():
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack_one, lambda tensor: tensor):
        yield saved
