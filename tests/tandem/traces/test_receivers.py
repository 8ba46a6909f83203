"""Real receivers open what `tandem trace export` sends. They are installed in virtual environments of their own:

TANDEM_TEST_MLFLOW=/venvs/mlflow/bin     mlflow>=3.6
TANDEM_TEST_PHOENIX=/venvs/phoenix/bin   arize-phoenix
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.processes.mongod import Mongod
from shared.store import Store
from tandem import app
from tests.shared.episodes import whole_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
START_S = 300.0
ASK_MLFLOW = """
import json, sys
from mlflow import MlflowClient
found = MlflowClient(sys.argv[1]).search_traces(locations=["0"], max_results=50)
print(json.dumps([{
    "usage": trace.info.token_usage,
    "spans": [[s.name, s.span_type, s.attributes.get("tandem.record"), s.attributes.get("tandem.reward"), s.outputs]
              for s in trace.data.spans],
} for trace in found]))
"""


def programs(variable: str) -> Path:
    if not (found := os.environ.get(variable)):
        pytest.skip(f"{variable} names no folder with the receiver's programs")
    return Path(found)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def serving(command: list[str], folder: Path, health: str, **variables: str) -> Iterator[None]:
    environment = {name: value for name, value in os.environ.items() if name != "DB_CONNECTION_STRING"} | variables
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert server.poll() is None, (folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "it does not answer"
            try:
                with urllib.request.urlopen(health, timeout=5):
                    break
            except OSError:
                time.sleep(0.5)  # it starts
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # it and its workers: a session of their own
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(20)


def stored_spans(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/v1/projects/default/spans?limit=100", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]
        return found


async def exported_twice(store: Store, mongod: Mongod, url: str, *arguments: str) -> None:
    given = ["trace", "export", store.run, "--otlp", url, *arguments]
    for _ in range(2):
        given_database = ["--db_connection_string", mongod.connection_string]
        result = await asyncio.to_thread(CliRunner().invoke, app, [*given, *given_database])
        assert result.exit_code == 0, result.output
        assert "4 episodes, 20 spans" in result.output


async def test_mlflow_shows_each_episode_once_with_its_reward_usage_and_tool_call(
    store: Store, mongod: Mongod, tmp_path: Path
) -> None:
    bin_, port = programs("TANDEM_TEST_MLFLOW"), free_port()
    url = f"http://127.0.0.1:{port}"
    records = await whole_run(store)
    command = [str(bin_ / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", "sqlite:///mlflow.db"]
    with serving(command, tmp_path, f"{url}/health", PATH=f"{bin_}:{os.environ['PATH']}"):
        await exported_twice(store, mongod, url, "--header", "x-mlflow-experiment-id=0")
        asked = [str(bin_ / "python"), "-c", ASK_MLFLOW, url]
        answer = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True, timeout=300)
        assert answer.returncode == 0, answer.stderr[-3000:]
    traces: list[dict[str, Any]] = json.loads(answer.stdout)
    roots = {trace["spans"][0][2]: trace for trace in traces}
    assert (sorted(roots), len(traces)) == (sorted(records), 4)
    trace = roots["main:train:0:t0:1:1"]
    assert {name: trace["usage"][name] for name in ("input_tokens", "output_tokens")} == {
        "input_tokens": 17,
        "output_tokens": 6,
    }
    kinds = [(name, kind) for name, kind, *_ in trace["spans"]]
    assert kinds[:3] == [("invoke_agent main", "AGENT"), ("chat main", "LLM"), ("execute_tool calculator", "TOOL")]
    assert (len(kinds), trace["spans"][0][3]) == (5, 1.0)
    assert "reply 0" in json.dumps(trace["spans"][1][4])


async def test_phoenix_shows_each_episode_once_with_its_reward_usage_and_tool_call(
    store: Store, mongod: Mongod, tmp_path: Path
) -> None:
    bin_, port = programs("TANDEM_TEST_PHOENIX"), free_port()
    url = f"http://127.0.0.1:{port}"
    records = await whole_run(store)
    settings = {"PHOENIX_WORKING_DIR": str(tmp_path), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port)}
    settings |= {"PHOENIX_GRPC_PORT": str(free_port()), "PHOENIX_TELEMETRY_ENABLED": "false"}
    with serving([str(bin_ / "phoenix"), "serve"], tmp_path, f"{url}/healthz", **settings):
        await exported_twice(store, mongod, url)
        spans: list[dict[str, Any]] = []
        deadline = time.monotonic() + 60
        while len(spans) < 20 and time.monotonic() < deadline:  # it stores what it took a moment later
            spans = await asyncio.to_thread(stored_spans, url)
            await asyncio.sleep(0.5)  # until it has
    assert len(spans) == 20
    roots = {span["attributes"]["tandem.record"]: span for span in spans if span["parent_id"] is None}
    assert sorted(roots) == sorted(records)
    root = roots["main:train:0:t0:1:1"]
    assert (root["span_kind"], root["attributes"]["tandem.reward"]) == ("AGENT", 1.0)
    below = [span for span in spans if span["parent_id"] == root["context"]["span_id"]]
    assert sorted(span["span_kind"] for span in below) == ["LLM", "LLM", "LLM", "TOOL"]
    replies = [span["attributes"].get("llm.output_messages.0.message.content") for span in below]
    assert {"reply 0", "reply 1", "reply 2"} <= set(replies)
