"""A keeper that is asked to stop while its engine starts."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO

import pytest

from shared.processes.mongod import Mongod
from shared.store import Store
from tests.contract.engines import MODEL, ROOT

Until = Callable[..., Awaitable[None]]
LONG_S = "100000"


@pytest.mark.parametrize("signalled", ["both", "keeper"])
async def test_an_engine_that_ends_with_its_keeper_is_neither_counted_nor_started_again(
    mongod: Mongod, store: Store, until: Until, tmp_path: Path, signalled: str
) -> None:
    """As a service manager or Ctrl-C stops them: one signal to the process group, or to the keeper alone."""
    starts = tmp_path / "starts"
    never_answers = f"echo started >> {shlex.quote(str(starts))}; exec sleep {LONG_S}"
    command = [sys.executable, "-m", "sampler.engine.keeper", "--run", store.run, "--start_timeout_s", LONG_S]
    command += [
        "--model_name_or_path",
        str(MODEL),
        "--engine_command",
        f"sh -c {shlex.quote(never_answers)} engine {{model}} {{port}}",
    ]
    command += ["--db_connection_string", mongod.connection_string]
    with (tmp_path / "keeper.log").open("wb") as log:
        keeper = started(command, log)
    try:

        async def has_started() -> bool:
            assert keeper.poll() is None, (tmp_path / "keeper.log").read_text()
            return starts.exists() and starts.read_text() == "started\n"

        async def has_ended() -> bool:
            return keeper.poll() is not None

        await until(has_started)
        os.killpg(keeper.pid, signal.SIGTERM) if signalled == "both" else keeper.terminate()
        await until(has_ended)
        said = (tmp_path / "keeper.log").read_text()
        assert keeper.returncode == 0, said
        assert "engine ended" not in said
        assert starts.read_text() == "started\n"
    finally:
        keeper.kill()
        keeper.wait(60)


def started(command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
