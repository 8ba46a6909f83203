"""A real Prometheus scrapes real services and evaluates every query of the dashboard of Grafana: each is valid and has data."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.processes.mongod import free_port
from shared.store import Store
from tests.deploy.test_grafana import BOARD, FOLDER
from tests.sampler.environments.services import service
from tests.sampler.mcp_docker.gateways import gateway
from tests.system.processes import PATIENCE_S, Run
from tests.system.test_loop import queue_tasks
from tests.system.test_metrics_pages import has_trained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on the PATH (Debian's package)"),
]
VARIABLE = "label_values(tandem_step, run)"


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def unhealthy(self) -> dict[str, str]:
        """{address: what is wrong} of those that cannot be scraped, or not yet."""
        try:
            targets = self.ask("targets")["activeTargets"]
        except OSError as exc:
            return {"prometheus": str(exc)}  # it starts
        return {one["scrapeUrl"]: one["lastError"] or one["health"] for one in targets if one["health"] != "up"}

    def without_data(self, run: str) -> list[str]:
        """The dashboard's queries that return nothing. Raises HTTPError for one that is invalid."""
        asked = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
        return [query for query in asked if not self.ask("query", query=query.replace("$run", run))["result"]]


@contextmanager
def prometheus(folder: Path, pages: dict[str, str]) -> Iterator[Prometheus]:
    """With the jobs of our configuration, at these addresses (HOST:PORT)."""
    config, port = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8")), free_port()
    config["global"]["scrape_interval"] = "1s"
    for job in config["scrape_configs"]:
        named = [address for name, address in pages.items() if name.partition(" ")[0] == job["job_name"]]
        job["static_configs"] = [{"targets": named}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    flags = {"config.file": path, "storage.tsdb.path": folder / "data", "web.listen-address": f"127.0.0.1:{port}"}
    with (folder / "prometheus.log").open("wb") as log:
        command = ["prometheus", *(f"--{name}={value}" for name, value in flags.items())]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(60)


def test_our_configuration_is_valid() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", str(FOLDER / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.thorough
async def test_every_panel_has_data_of_the_services_that_it_is_about(tmp_path: Path) -> None:
    with Run(tmp_path, max_steps=1000) as run:
        pages = {"tandem-run": f"127.0.0.1:{free_port()}"}
        for name in ("keeper", "sampler", "trainer", "environments"):
            pages[f"tandem-processes {name}"] = f"127.0.0.1:{free_port()}"
        for flags, name in (
            (run.keeper_flags, "keeper"),
            (run.sampler_flags, "sampler"),
            (run.trainer_flags, "trainer"),
        ):
            flags["metrics_address"] = pages[f"tandem-processes {name}"]
        await queue_tasks(run)
        run.start_all()
        at = ("--run", run.name, "--metrics_address", pages["tandem-processes environments"])
        with (
            gateway(tmp_path) as mcp_docker,
            service(*at, DB_CONNECTION_STRING=run.mongod.connection_string),
            figures_of(run, pages["tandem-run"]),
        ):
            pages["mcp-docker"] = mcp_docker.url.removeprefix("http://")
            await run.until("a step", has_trained)
            async with Store.open(run.mongod.connection_string, run.name) as store:
                (engine,) = await store.services.all()
            pages["engines"] = engine.url.removeprefix("http://")
            with prometheus(tmp_path, pages) as asked:
                await until_empty(asked.unhealthy)
                await until_empty(lambda: asked.without_data(".*"))
                assert asked.without_data(run.name) == []
                queries = [one["query"]["query"] for one in BOARD["templating"]["list"] if one["type"] == "query"]
                assert queries == [VARIABLE], "Grafana's own: it asks the address below"
                assert asked.ask("label/run/values", **{"match[]": "tandem_step"}) == [run.name]


@contextmanager
def figures_of(run: Run, address: str) -> Iterator[None]:
    arguments = ("metrics", run.name, "--port", address.rpartition(":")[2])
    database = ("--db_connection_string", run.mongod.connection_string)
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem", *arguments, *database],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


async def until_empty(ask: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while found := await asyncio.to_thread(ask):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.5)  # until the next scrape
