"""The pages of a run's real processes have every metric that the dashboard of Grafana asks them for."""

import asyncio
import re
import time
import urllib.request
from pathlib import Path

import pytest

from shared.processes.mongod import free_port
from shared.store import Store
from tests.deploy.test_grafana import NAME, queries
from tests.system.processes import PATIENCE_S, Run
from tests.system.test_loop import queue_tasks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OF_PROCESSES = ("tandem_trainer_", "tandem_sampler_", "tandem_process_", "tandem_worker_", "sglang:")


def page_of(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())
    except OSError:  # it starts
        return ""


@pytest.mark.thorough
async def test_a_trainer_a_sampler_a_keeper_and_an_engine_serve_what_the_dashboard_asks_for(tmp_path: Path) -> None:
    asked = {name for _, query in queries() for name in NAME.findall(query) if name.startswith(OF_PROCESSES)}
    assert len(asked) >= 12
    with Run(tmp_path, max_steps=100) as run:
        pages = {}
        for name, flags in (
            ("keeper", run.keeper_flags),
            ("sampler", run.sampler_flags),
            ("trainer", run.trainer_flags),
        ):
            flags["metrics_address"] = f"127.0.0.1:{free_port()}"
            pages[name] = f"http://{flags['metrics_address']}/metrics"
        await queue_tasks(run)
        run.start_all()
        await run.until("a step", lambda store: has_trained(store))
        async with Store.open(run.mongod.connection_string, run.name) as store:
            (engine,) = await store.services.all()
        pages["engine"] = f"{engine.url}/metrics"
        deadline = time.monotonic() + PATIENCE_S
        found: set[str] = set()
        while not asked <= found and time.monotonic() < deadline:
            texts = {name: await asyncio.to_thread(page_of, url) for name, url in pages.items()}
            found = set(re.findall(r"^# TYPE (\S+) gauge$", "\n".join(texts.values()), re.MULTILINE))
            await asyncio.sleep(0.5)  # until the next heartbeat
        assert asked - found == set()
        assert re.search(r'^tandem_worker_alarms\{run="system",kind="keeper"', texts["keeper"], re.MULTILINE)
        step = re.search(
            r'^tandem_trainer_step\{run="system",worker="trainer:main:[^"]*"\} (\d+)$', texts["trainer"], re.M
        )
        assert step is not None
        assert int(step[1]) >= 1


async def has_trained(store: Store) -> bool:
    return await store.database["trained_steps"].find_one() is not None
