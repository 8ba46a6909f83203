"""What a killed sampler's commands leave in the machine's temporary folder, and how many files a gateway may open."""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sampler.gateway import workplace
from sampler.gateway.workplace import plain_workplace
from tests.conftest import ROOT
from tests.sampler.episodes import MODEL

SAMPLER = """
import asyncio
from sampler.gateway.workplace import plain_workplace

async def main():
    async with plain_workplace(None, None, "off") as work:
        print(work.folder, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
OPENS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.argv = ["sampler", *sys.argv[1:]]
from sampler import __main__ as program
async def service(config):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
program.serve(program.SamplerConfig.load_or_exit(), service)
"""


async def test_the_folder_of_a_killed_samplers_command_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    samplers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", SAMPLER, stdout=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    try:
        folders = []
        for sampler in samplers:
            assert sampler.stdout is not None
            folders.append(Path((await sampler.stdout.readline()).decode().strip()).name)
        samplers[0].kill()
        await samplers[0].wait()
        workplace._remove_left_once.cache_clear()
        async with plain_workplace(None, None, "off") as work:
            assert set(os.listdir(tmp_path)) == {folders[1], work.folder.name}, "that of a living one stays"
        assert os.listdir(tmp_path) == [folders[1]]
    finally:
        for sampler in samplers:
            if sampler.returncode is None:
                sampler.kill()
                await sampler.wait()


def test_a_sampler_may_open_as_many_files_as_its_user() -> None:
    """With commands as agents, or tools, an episode takes five to ten, and the usual limit is 1024."""
    flags = ["--run", "x", "--db_connection_string", "mongodb://127.0.0.1:1", "--model_name_or_path", str(MODEL)]
    command = [sys.executable, "-c", OPENS, *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert ended.stdout.split() == [str(hard)] * 2, ended.stderr
