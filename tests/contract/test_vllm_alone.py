"""`python -m sampler.engine.vllm` without a keeper: what it gets on a CPU by itself, its figures, and its end while it starts."""

import os
import re
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from sampler.engine.keeper.child import command_line
from shared.processes.mongod import free_port
from tests.contract.engines import COMMANDS, MODEL, ROOT, START_S, VLLM_PYTHON, skip_without, started

pytestmark = [pytest.mark.timeout(2 * START_S), pytest.mark.slow]


def test_no_notification_between_its_processes_is_lost() -> None:
    """One that is lost holds a request for a minute. With vLLM's own writer about every second one is, where readers block."""
    skip_without("vllm")
    command = [str(VLLM_PYTHON), "-m", "tests.contract.vllm_round_trips", "5000"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=True)
    assert ended.stdout.splitlines()[-1] == "rounds=5000 lost=0", ended.stderr[-2000:]


@pytest.mark.thorough
def test_it_has_a_bounded_cache_and_serves_vllms_own_metrics_where_they_are_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own default, 92 % of the machine's memory, ends the start where less is free."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    log = tmp_path / "engine.log"
    with started("vllm", MODEL, log, flags=["--enable-metrics", "--enforce-eager"]) as (url, _):
        page = httpx.get(f"{url}/metrics", timeout=30).text
    assert "KV cache: 1 GiB" in log.read_text()
    assert {"sglang:num_running_reqs", "vllm:num_requests_running"} <= set(re.findall(r"^([a-z]+:\w+)", page, re.M))


@pytest.mark.thorough
def test_ended_while_it_starts_it_leaves_no_process(tmp_path: Path) -> None:
    skip_without("vllm")
    log = tmp_path / "engine.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command_line(COMMANDS["vllm"], MODEL, free_port()), "--enforce-eager"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    started_by_it: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + START_S
        while b"Worker pid" not in log.read_bytes():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)  # its log is all that says that a worker has started
        started_by_it = psutil.Process(process.pid).children(recursive=True)
        assert len(started_by_it) >= 2, "vLLM's core and a worker"
        process.terminate()
        assert process.wait(60) == 143
        gone, alive = psutil.wait_procs(started_by_it, timeout=60)
        assert (alive, len(gone)) == ([], len(started_by_it))
    finally:
        for one in (process, *(one for one in started_by_it if one.is_running())):
            one.kill()
        process.wait(60)
