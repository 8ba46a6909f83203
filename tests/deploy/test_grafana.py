"""The dashboard of Grafana asks for metrics that Tandem's pages have, and each of its queries is valid in its parts."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sampler.engine.api import answers
from shared.documents.run import Worker
from shared.http.metrics_page import as_page, of_process, of_worker
from tandem.commands.metrics import HELP
from trainer.run.status import Status
from trainer.run.step_reports import HEADLINE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana"
BOARD = json.loads((FOLDER / "tandem.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b((?:tandem|mcp_docker|sglang)[a-z_]*:?[a-z_]+)\b(?=[{\[),]|$|\s)")
ANY_LOAD = {"running": 1, "waiting": 2, "tokens": 3}


class AnyModel:
    model_path, max_total_tokens = 'a"b\\c', 100


def exported() -> set[str]:
    """Names on the pages of a run, of a trainer, a sampler, a service of environments, an engine and MCP-Docker."""
    worker = Worker(id="t", kind="trainer", host="h", pid=1)
    status = Status(worker)
    status.doing("step 1", step=1, **dict.fromkeys(HEADLINE, 0.5))
    of_sampler = worker.model_copy(update={"kind": "sampler", "stats": dict.fromkeys(keys_of_stats(), 1.0)})
    pages = as_page("r", [*of_worker(status.worker), *of_worker(of_sampler), *of_process()]).decode()
    pages += answers.metrics(AnyModel(), ANY_LOAD, 1.5)  # type: ignore[arg-type]  # its three names alone
    names = set(re.findall(r"^# TYPE (\S+)", pages, re.MULTILINE)) | {f"tandem_{name}" for name in HELP}
    names |= {f"tandem_environments_{name}" for name in ("running", "starting", "capacity")}
    source = (ROOT / "sampler" / "mcp_docker" / "requests" / "metrics.py").read_text(encoding="utf-8")
    prefix = re.search(
        r'PREFIX = "(\w+)"', (ROOT / "sampler/mcp_docker/sessions/call_counts.py").read_text(encoding="utf-8")
    )
    assert prefix is not None
    return names | {prefix[1] + name for name in re.findall(r'_(?:gauge|counter)\("(\w+)"', source)}


def keys_of_stats() -> list[str]:
    """Of a sampler's heartbeat: the names that its source has (the real ones: tests/system/test_metrics_pages.py)."""
    source = (ROOT / "sampler" / "core" / "service" / "service.py").read_text(encoding="utf-8")
    found = next(n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.keyword) and n.arg == "stats")
    assert isinstance(found, ast.Dict)
    counted = re.search(r"^COUNTED = \((.*)\)", source, re.MULTILINE)
    assert counted is not None
    named = [key.value for key in found.keys if isinstance(key, ast.Constant)]
    return [*named, *re.findall(r'"(\w+)"', counted[1])]


def queries() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def test_every_query_names_an_exported_metric() -> None:
    known = exported()
    asked: dict[str, Any] = {f"{title}: {query}": NAME.findall(query) for title, query in queries()}
    assert len(asked) >= 20
    assert [query for query, names in asked.items() if not names] == []
    assert {query: names for query, names in asked.items() if not set(names) <= known} == {}


def test_the_dashboard_is_of_one_piece() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels), "none covers another"
    assert all(query.count("{") == query.count("}") and query.count("(") == query.count(")") for _, query in queries())


def test_the_page_of_an_engine_quotes_its_models_name() -> None:
    page = answers.metrics(AnyModel(), ANY_LOAD, 1.5)  # type: ignore[arg-type]  # its three names alone
    assert 'sglang:num_queue_reqs{model_name="a\\"b\\\\c"} 2\n' in page


def test_prometheus_is_told_of_every_kind_of_page() -> None:
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert {job["job_name"] for job in jobs} == {"tandem-run", "tandem-processes", "engines", "mcp-docker"}
