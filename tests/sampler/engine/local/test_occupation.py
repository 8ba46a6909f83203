"""The local engine's memory, released and resumed: seen in its resident set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.sampler.engine.local.harness import CONTEXT, VOCABULARY, Reference, Server, run_engine, write_tokenizer

PROMPT = [5, 100, 101, 102, 103, 104]
MIB = 1 << 20


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """104 MiB of weights."""
    folder = tmp_path_factory.mktemp("wide")
    eos = write_tokenizer(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        eos_token_id=eos, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(wide: Path) -> Iterator[Server]:
    with run_engine(wide) as server:
        yield server


def resident(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def asleep(server: Server) -> None:
    server.ok("/pause_generation", {"mode": "retract"})
    server.ok("/release_memory_occupation", {})


def awake(server: Server, folder: Path) -> None:
    server.ok("/resume_memory_occupation", {})
    server.ok("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "1"})
    server.ok("/continue_generation", {})


def test_the_memory_of_weights_and_cache_is_given_back_to_the_system(engine: Server, wide: Path) -> None:
    weights = sum(file.stat().st_size for file in wide.glob("*.safetensors"))
    assert weights > 100 * MIB
    expected = engine.generate(PROMPT, 8, temperature=0)["output_ids"]
    before = resident(engine)
    asleep(engine)
    freed = before - resident(engine)
    assert freed > 0.9 * weights, f"{freed / MIB:.0f} of {weights / MIB:.0f} MiB"
    awake(engine, wide)
    answer = engine.generate(PROMPT, 8, temperature=0)
    assert resident(engine) > before - 0.5 * weights, "after a step, which takes the same memory for a while"
    assert answer["output_ids"] == expected
    Reference((wide,)).assert_exact(0, PROMPT, answer)


def test_an_engine_without_weights_samples_nothing(engine: Server, wide: Path) -> None:
    """SGLang on a GPU would read memory that is not there: on a CPU the refusals can be seen."""
    asleep(engine)
    for path, body in (
        ("/continue_generation", {}),
        ("/update_weights_from_disk", {"model_path": str(wide), "weight_version": "2"}),
        ("/get_weights_by_name", {"name": "model.norm.weight"}),
    ):
        assert engine.post(path, body).status_code == 400, path
    engine.ok("/resume_memory_occupation", {})
    refused = engine.post("/continue_generation", {})
    assert refused.status_code == 400
    assert "update the weights first" in refused.json()["message"]
    awake(engine, wide)
    Reference((wide,)).assert_exact(0, PROMPT, engine.generate(PROMPT, 8))


def test_memory_is_not_released_under_running_requests(engine: Server, wide: Path) -> None:
    engine.ok("/pause_generation", {"mode": "in_place"})
    engine.ok("/continue_generation", {})
    refused = engine.post("/release_memory_occupation", {"tags": ["weight"]})
    assert refused.status_code == 400
    assert "'weight' is unknown" in refused.text
    assert engine.running() == 0
