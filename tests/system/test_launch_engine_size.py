"""The local engine that a launch starts holds what its samplers can ask for, within the memory that the settings give it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shared.errors import ConfigError
from tandem.launch.engine_size import engine_size
from tandem.launch.policies import load_policies
from tandem.launch.services import memory_lines

SHAPE = (
    '{"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30, '
    '"max_position_embeddings": 8192}'
)
TASK = '{"id": "a", "query": "1+1?", "answer": "2", "scorer": "math", "answer_schema": "answer"}\n'


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A launch with a model of SmolLM2-135M's shape."""
    (tmp_path / "config.json").write_text(SHAPE)
    (tmp_path / "tasks.jsonl").write_text(TASK)
    return ["demo", "--model", str(tmp_path), "--train_file", str(tmp_path / "tasks.jsonl")]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Settings of the services, as environment variables: flags of theirs would be shown to the trainer, which takes seconds."""

    def give(**values: int) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"TANDEM_{name}", str(value))

    return give


def flags(*arguments: str) -> list[str]:
    (policy,) = load_policies(arguments)
    size = engine_size([policy], policy)
    return [] if size is None else size.flags


def lines(*arguments: str) -> list[str]:
    return memory_lines(load_policies(arguments))


def test_its_context_is_the_longest_that_a_sampler_asks_for(arguments: list[str], given: Callable[..., None]) -> None:
    given(SAMPLER_MAX_TOKENS=4096, SAMPLER_MAX_CONCURRENT_EPISODES=10)
    assert flags(*arguments) == ["--context_length", "4098", "--max_running_requests", "20"]
    (line,) = lines(*arguments)
    assert line.startswith("local engine: ")
    assert "slots x 4098 tokens x 45 KiB" in line


def test_a_shorter_context_of_the_model_is_said(arguments: list[str], given: Callable[..., None]) -> None:
    given(SAMPLER_MAX_TOKENS=32768)
    _, line = lines(*arguments)
    assert line == "episodes end at 8190 tokens (length_limit), before max_tokens 32768: that is the model's context"


def test_a_context_that_does_not_fit_is_shortened_and_said(arguments: list[str], given: Callable[..., None]) -> None:
    given(SAMPLER_MAX_TOKENS=4096, KEEPER_KV_CACHE_BYTES=100_000_000)
    assert flags(*arguments)[:2] == ["--context_length", "2170"]
    _, line = lines(*arguments)
    assert line.startswith(
        "episodes end at 2168 tokens (length_limit), before max_tokens 4096: that is what kv_cache_bytes"
    )


def test_what_the_user_gives_the_keeper_counts(arguments: list[str], given: Callable[..., None]) -> None:
    given(KEEPER_CONTEXT_LENGTH=1000, KEEPER_MAX_RUNNING_REQUESTS=3)
    assert flags(*arguments) == []
    assert "= 3 slots x 1000 tokens" in lines(*arguments)[0]
    given(KEEPER_KV_CACHE_BYTES=1_000_000)
    with pytest.raises(ConfigError, match="policy main: one context of 1000 tokens takes"):
        flags(*arguments)


def test_engines_that_run_elsewhere_get_none_of_it(arguments: list[str]) -> None:
    assert flags(*arguments, "--engine_urls", "http://gpu:30000") == []
    assert flags(*arguments, "--engine", "sglang") == []
