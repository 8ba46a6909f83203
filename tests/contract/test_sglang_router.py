"""SGLang's own router in front of two engines: what passes through it unchanged, and what does not (docs/run/cluster.md).

It runs where `sglang-router` is installed: SGLANG_ROUTER=/path/to/venv/bin/python pytest tests/contract/test_sglang_router.py
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.processes.mongod import free_port

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "assets" / "example" / "model")
PYTHON = os.environ.get("SGLANG_ROUTER")
PATIENCE_S = 400.0
PROMPT = [1, 5, 9, 12, 33, 40]

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="SGLANG_ROUTER names no Python with sglang-router"),
    pytest.mark.timeout(900),
]


class Routed:
    def __init__(self, router: str, engines: list[str]) -> None:
        self.router = router
        self.engines = engines
        self.client = httpx.Client(timeout=120)

    def generate(self, url: str, ids: list[int]) -> dict[str, Any]:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 8, "temperature": 0}, "return_logprob": True}
        answer = self.client.post(f"{url}/generate", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def status(self, method: str, path: str, **body: Any) -> int:
        return self.client.request(method, self.router + path, json=body or None).status_code


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    folder, ports, started = tmp_path_factory.mktemp("router"), [free_port() for _ in range(4)], []
    engines = [f"http://127.0.0.1:{port}" for port in ports[:2]]
    router = f"http://127.0.0.1:{ports[2]}"
    lines = [[sys.executable, "-m", "sampler.engine.local", "--model-path", MODEL, "--port", str(p)] for p in ports[:2]]
    own = ["--worker-urls", *engines, "--policy", "cache_aware", "--prometheus-port", str(ports[3])]
    lines.append([str(PYTHON), "-m", "sglang_router.launch_router", "--port", str(ports[2]), *own])
    try:
        for line, url, path in zip(lines, [*engines, router], ["/model_info", "/model_info", "/health"], strict=True):
            with (folder / f"{len(started)}.log").open("wb") as log:
                started.append(subprocess.Popen(line, cwd=ROOT, stdout=log, stderr=log))
            until_answers(url + path)
        found = Routed(router, engines)
        yield found
        found.client.close()
    finally:
        for process in started:
            process.kill()
            process.wait()


def until_answers(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if httpx.get(url, timeout=10).status_code == 200:
                return
        except httpx.HTTPError:
            assert time.monotonic() < deadline, url
        time.sleep(0.3)


def test_ids_log_probs_and_the_version_of_a_request_pass_unchanged(routed: Routed) -> None:
    direct, through = (routed.generate(url, PROMPT) for url in (routed.engines[0], routed.router))
    assert through["output_ids"] == direct["output_ids"]
    for name in ("output_token_logprobs", "weight_version", "finish_reason", "prompt_tokens"):
        assert through["meta_info"][name] == direct["meta_info"][name]


def test_a_conversation_stays_with_the_engine_that_has_its_prefix(routed: Routed) -> None:
    ids = list(range(20, 84))
    for turn in range(6):
        answer = routed.generate(routed.router, ids)
        assert turn == 0 or answer["meta_info"]["cached_tokens"] >= len(ids) // 2
        ids = [*ids, *answer["output_ids"], 5, 6]


def test_two_versions_are_behind_it_at_once_and_only_the_answer_says_which(routed: Routed) -> None:
    update = {"model_path": MODEL, "weight_version": "7"}
    assert routed.client.post(f"{routed.engines[0]}/update_weights_from_disk", json=update).status_code == 200
    versions = [routed.generate(url, PROMPT)["meta_info"]["weight_version"] for url in routed.engines]
    assert versions[0] == "7" != versions[1]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/model_info"),
        ("GET", "/server_info"),
        ("GET", "/v1/loads"),
        ("POST", "/update_weights_from_disk"),
        ("POST", "/pause_generation"),
        ("POST", "/continue_generation"),
        ("POST", "/abort_request"),
    ],
)
def test_what_a_keeper_and_an_aborting_sampler_need_is_not_there(routed: Routed, method: str, path: str) -> None:
    assert routed.status(method, path) == 404
