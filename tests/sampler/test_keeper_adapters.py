"""Which keepers may leave adapters to their engine. (With a real one: tests/contract/test_engine_adapters.py.)"""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sampler.core.engines.client.engine_client import EngineClient
from sampler.engine.keeper.adapters import EngineAdapters
from sampler.engine.keeper.config import KeeperConfig
from shared.errors import ConfigError

VLLM = "vllm --model {model} --port {port}"


def config(**options: Any) -> KeeperConfig:
    given = {"run": "r", "db_connection_string": "(none)", "model_name_or_path": Path("assets/example/model")}
    return KeeperConfig(**given, adapters="engine", **options)


async def test_the_local_engine_serves_none() -> None:
    async with EngineClient() as client:
        with pytest.raises(ConfigError, match="the local engine serves merged weights alone; expected engine_command"):
            EngineAdapters(client, config())
        assert EngineAdapters(client, config(engine_command=VLLM)).serving is None


def test_an_engine_that_sleeps_serves_none() -> None:
    with pytest.raises(ValidationError, match="adapters is engine, and shared_device is set"):
        config(engine_command=VLLM, shared_device="gpu-0")


def test_an_engine_that_serves_adapters_joins_no_broadcast() -> None:
    assert not config(engine_url="http://e:1").joins_broadcasts
    assert config(engine_url="http://e:1").model_copy(update={"adapters": "merged"}).joins_broadcasts
