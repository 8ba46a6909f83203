"""What the engine takes of memory: what is written to, in small pages, at most what it says at its start."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from sampler.engine.local.memory import CacheShape, CacheTooSmall, plan_cache, weights_bytes
from shared.processes import machine_memory
from tests.sampler.engine.local.harness import run_engine

SMOLLM2 = CacheShape(layers=30, kv_heads=3, head_dim=64, limit=8192)
MB = 1_000_000


@pytest.fixture(scope="module")
def smollm2_shaped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, and a tokenizer of single bytes."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_tokens_in_eight_slots_take_a_few_megabytes(smollm2_shaped: Path) -> None:
    """With huge pages each of the eight takes 360 MB: a page of 2 MB in each of the 180 places where a token lies."""
    with run_engine(smollm2_shaped, "--context-length", "8192", "--kv-cache-bytes", "4000000000") as server:
        server.client.timeout = 300
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: server.generate([number, 7, 8], max_new_tokens=2, ignore_eos=True), range(8)))
        taken = process.memory_info().rss - before
    assert taken < 200 * MB


def test_the_cache_has_as_many_slots_as_its_bytes_hold() -> None:
    assert SMOLLM2.token_bytes == 46_080
    plan = plan_cache(SMOLLM2, kv_cache_bytes=2_000 * MB, context_length=1024)
    assert (plan.slots, plan.context) == (42, 1024)
    assert plan.cache_bytes <= 2_000 * MB
    assert plan_cache(SMOLLM2, kv_cache_bytes=2_000 * MB, context_length=1024, max_running=8).slots == 8
    assert "42 slots x 1024 tokens x 45 KiB" in plan.text(538 * MB)
    assert plan.text(538 * MB).startswith("2.5 GB of memory at most: weights 0.5 GB, KV cache 2.0 GB")


def test_a_context_that_was_given_is_never_shortened() -> None:
    asked = re.escape("one context of 8192 tokens takes 0.4 GB of KV cache (46080 bytes a token)")
    with pytest.raises(CacheTooSmall, match=f"{asked}.*--kv-cache-bytes is 100000000.*lower --context-length"):
        plan_cache(SMOLLM2, kv_cache_bytes=100 * MB, context_length=8192)
    plan = plan_cache(SMOLLM2, kv_cache_bytes=100 * MB, may_shorten=True)
    assert plan.is_shortened
    assert (plan.slots, plan.context, plan.full_context) == (1, 2170, 8192)


def test_by_default_the_cache_has_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sampler.engine.local.memory.machine_memory_bytes", lambda: 8_000 * MB)
    assert plan_cache(SMOLLM2).cache_bytes <= 2_000 * MB
    assert plan_cache(SMOLLM2).slots == 5


def test_the_weights_are_counted_in_float32(smollm2_shaped: Path, tmp_path: Path) -> None:
    assert weights_bytes(smollm2_shaped) == pytest.approx(426 * MB, rel=0.01)
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    assert weights_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/a/b\n", {"a/memory.max": "5000\n", "a/b/memory.max": "max\n"}, 5000),
        ("0::/\n", {}, None),
        ("4:cpu,memory:/a\n1:pids:/a\n", {"memory/a/memory.limit_in_bytes": "7000\n"}, 7000),
    ],
)
def test_the_limit_of_a_container_is_the_machines_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "own").write_text(lines)
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine_memory, "OWN_CGROUPS", tmp_path / "own")
    found = machine_memory.machine_memory_bytes()
    assert found == limit if limit is not None else found > 100 * MB
