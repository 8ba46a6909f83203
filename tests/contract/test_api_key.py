"""An engine with an API key: its keeper and samplers send it, and without it they fail at once.

(The same for the real SGLang: test_owned.py, which starts one. In whole processes: tests/system/test_loop.py.)
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import KeyRefused
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.keeper import Keeper
from shared.store import Store
from shared.weights.assembly import Assembly
from tandem.launch.step_cost import ProbeRefused, probe
from tests.contract.engines import Engine, Reference, started
from tests.contract.flights import Until
from tests.contract.kept import keeping
from tests.contract.test_step_cost import service

KEY = "sk-very-secret"


@pytest.fixture
def guarded(models: tuple[Path, Path], tmp_path: Path) -> Iterator[Engine]:
    with started("local", models[0], tmp_path / "engine.log", KEY) as (url, _):
        yield Engine("local", url, models, Reference(models))


async def test_an_engine_with_an_api_key_is_used_with_it_and_refuses_requests_without_it_at_once(
    guarded: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    async with keeping(guarded, store, until, key=KEY) as kept:
        await kept.announce(guarded.weights(1))
        await kept.serves(1)
        assert (await kept.ask()).generation.version_runs == [[1, 8]]
    config = KeeperConfig(
        run=store.run, db_connection_string="", model_name_or_path=guarded.models[0], engine_url=guarded.url
    )
    for key in (None, "another"):
        async with EngineClient(api_key=key) as client:
            with pytest.raises(KeyRefused, match="engine_api_key_var"):
                await Keeper(store, client, config, Assembly(tmp_path)).run(asyncio.Event())
    up = service(guarded.url)
    assert await probe([up], KEY) is not None, "the launcher measures it, too"
    with pytest.raises(ProbeRefused, match=r"answered HTTP 401 to a short request; .* engine_api_key_var"):
        await probe([up])
    async with httpx.AsyncClient(base_url=guarded.url, timeout=60) as http:
        paths = ("/health", "/model_info", "/v1/loads", "/nowhere")
        assert [(await http.get(path)).status_code for path in paths] == [200, 401, 401, 401]
