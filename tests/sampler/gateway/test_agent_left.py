"""What an agent's command in a sandbox leaves: files that are kept, and nothing after a sampler that was killed."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from sampler.gateway import kept_files
from sampler.gateway.agent_sandbox import AgentSandbox
from sampler.gateway.kept_files import copy_out
from shared.sandbox import (
    IsolationLevel,
    Launch,
    containers,
    discard,
    new_folder,
    reap_left_over,
    start,
)
from tests.conftest import ROOT
from tests.sampler.gateway.isolated import configured
from tests.sampler.mcp_docker.gateways import until_gone
from tests.shared.sandbox.starting import PATIENCE_S, needs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("temporary")]


SAMPLER = """
import asyncio, sys
from tests.sampler.gateway.isolated import hangs
asyncio.run(hangs(sys.argv[1]))
"""


@pytest.mark.parametrize("level", IsolationLevel)
@pytest.mark.parametrize("wardens_too", [False, True])
async def test_a_killed_sampler_leaves_nothing_after_the_next_ones_start(
    temporary: str, level: IsolationLevel, wardens_too: bool
) -> None:
    needs(level)
    if level is IsolationLevel.CONTAINER and "DOCKER_HOST" not in os.environ:
        pytest.skip("container: DOCKER_HOST is not set; needs an engine with a test image")
    base = Path(temporary) / f"tandem-{os.getuid()}" / "agents"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen([sys.executable, "-c", SAMPLER, level], cwd=ROOT, env=environment) as sampler,  # noqa: ASYNC220 - at once
        ExitStack() as at_end,
    ):
        at_end.callback(sampler.kill)  # also where the test fails
        async with asyncio.timeout(PATIENCE_S):
            while len(list(base.glob("0/*/ready"))) < 2:
                assert sampler.poll() is None
                await asyncio.sleep(0.05)
        alive = psutil.Process(sampler.pid).children(recursive=True)
        wardens = psutil.Process(sampler.pid).children()
        assert len(alive) >= (4 if level is IsolationLevel.CONTAINER else 8)
        config = configured(agent_command="true", agent_isolation="process")
        living = AgentSandbox(config)
        await living.open()  # of a second sampler, while the first one lives
        assert living._state == base / "1"
        sampler.kill()
        for warden in wardens if wardens_too else ():
            warden.kill()
        await asyncio.to_thread(sampler.wait, PATIENCE_S)
    next_one = AgentSandbox(config)
    await next_one.open()
    await until_gone(alive)
    assert await containers.left_over(base / "0") == []
    assert next_one._state == base / "0"
    assert sorted(str(path.relative_to(base)) for path in base.rglob("*")) == ["0", "0/.lock", "1", "1/.lock"]
    await living.close()
    await next_one.close()


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a command left."""
    (tmp_path / "left" / "deep" / "er").mkdir(parents=True)
    return tmp_path / "left"


def test_files_are_kept_and_neither_links_nor_rights_reach_further(left: Path, tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("s3cret")
    (left / "deep" / "er" / "file").write_text("text")
    (tool := left / "tool").write_text("#!/bin/sh")
    tool.chmod(0o6755)
    (left / "link").symlink_to(secret)
    (left / "stdout.txt").symlink_to(secret)
    (left / "folder").symlink_to(tmp_path)
    os.mkfifo(left / "pipe")
    (left / "closed").mkdir()
    (left / "closed" / "file").write_text("closed")
    (left / "closed" / "file").chmod(0)
    (left / "closed").chmod(0)
    (kept := tmp_path / "kept").mkdir()
    (kept / "stdout.txt").write_text("ours")
    copy_out(left, kept)
    assert (kept / "deep" / "er" / "file").read_text() == "text"
    assert stat.S_IMODE((kept / "tool").stat().st_mode) & 0o7100 == 0o100
    assert (kept / "link").is_symlink()
    assert (kept / "folder").is_symlink()
    assert (kept / "stdout.txt").read_text() == "ours"
    assert not (kept / "pipe").exists()
    assert (kept / "closed" / "file").read_text() == "closed"
    assert secret.read_text() == "s3cret"


def test_files_that_become_links_are_not_followed(left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "secret").write_text("s3cret")
    (left / "file").write_text("text")
    stat_of = os.stat

    def exchanged(name: Any, *given: Any, **how: Any) -> os.stat_result:
        found = stat_of(name, *given, **how)
        if name in ("file", "deep"):
            (left / name).rename(tmp_path / f"moved {name}")
            (left / name).symlink_to(elsewhere / "secret" if name == "file" else elsewhere)
        return found

    monkeypatch.setattr(os, "stat", exchanged)
    (kept := tmp_path / "kept").mkdir()
    copy_out(left, kept)
    monkeypatch.undo()
    assert sorted(str(path.relative_to(kept)) for path in kept.rglob("*")) == ["deep"]


def test_one_entry_that_cannot_be_kept_costs_no_other_and_files_are_ours_alone(left: Path, tmp_path: Path) -> None:
    for number in range(20):
        (left / str(number)).write_text("text")
    (left / "stdout.txt").mkdir()
    (kept := tmp_path / "kept").mkdir()
    (kept / "stdout.txt").write_text("ours")
    copy_out(left, kept)
    assert {str(number) for number in range(20)} < set(os.listdir(kept))
    assert (kept / "stdout.txt").read_text() == "ours"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (kept / "0", kept / "deep")}
    assert modes == {0o600, 0o700}


def test_output_is_kept_where_a_directory_is_too_large(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "MAX_KEPT_BYTES", 1 << 20)
    (left / "deep" / "large").write_bytes(bytes(2 << 20))
    (kept := tmp_path / "kept").mkdir()
    (kept / "stdout.txt").write_text("ours")
    copy_out(left, kept)
    assert os.listdir(kept) == ["stdout.txt"]


@pytest.mark.parametrize("how", ["bytes", "holes", "entries", "levels", "time"])
def test_a_directory_that_is_too_large_is_not_kept(
    left: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "MAX_KEPT_BYTES", 1 << 20)
    if how == "time":
        monkeypatch.setattr(kept_files, "MAX_COPYING_S", 0.0)
    if how == "levels":
        deep = left.joinpath(*["d"] * 150)
        deep.mkdir(parents=True)
    for number in range(300 if how == "entries" else 1):
        with (left / str(number)).open("wb") as file:
            file.write(bytes(2 << 20 if how == "bytes" else 0))
            file.truncate(64 << 20 if how == "holes" else 2 << 20 if how == "bytes" else 0)
    (kept := tmp_path / "kept").mkdir()
    copy_out(left, kept)
    assert not kept.exists()


def test_paths_that_are_too_long_do_not_fail_the_episode(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (left / "file").write_text("text")
    monkeypatch.chdir(left / "deep")
    for _ in range(30):  # 30 * 201 bytes, of 4,096
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    (kept := tmp_path / "kept").mkdir()
    copy_out(left, kept)
    assert (kept / "file").read_text() == "text"
    os.chdir(tmp_path)
    shutil.rmtree(left)
    shutil.rmtree(kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users for sessions")
async def test_a_killed_warden_leaves_nothing_that_hid_its_mark(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    text = "env -i setsid sleep 600 </dev/null >/dev/null 2>&1 & echo begun; exec sleep 600"
    process = await start(Launch(("sh", "-c", text), folder), IsolationLevel.PROCESS)
    assert await process.stdout.readline() == b"begun\n"
    async with asyncio.timeout(PATIENCE_S):
        while len(inside := psutil.Process(process.pid).children(recursive=True)) < 2:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    await process.stop()
    assert [each for each in inside if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
    await discard(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users for sessions")
async def test_reaping_spares_a_living_session_that_has_the_same_user(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "living")
    process = await start(Launch(("sleep", "600"), folder), IsolationLevel.PROCESS)
    (left := tmp_path / "killed" / "left").mkdir(parents=True)
    os.chown(left, folder.stat().st_uid, -1)
    found = await reap_left_over(tmp_path / "killed")
    assert (found.processes, found.folders) == (0, 1)
    assert not left.exists()
    assert process.returncode is None
    os.kill(process.pid, signal.SIGTERM)
    await process.stop()
    await discard(folder)


def test_a_folder_of_too_many_entries_is_refused_while_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, kept = tmp_path / "left", tmp_path / "kept"
    left.mkdir()
    kept.mkdir()
    for number in range(20):
        (left / f"{number}").mkdir()
    monkeypatch.setattr(kept_files, "MAX_KEPT_BYTES", 10 * 4096)
    copied = list[Path]()
    monkeypatch.setattr(kept_files.Path, "mkdir", lambda path, **_: copied.append(path))
    copy_out(left, kept)
    assert copied == [], "nothing was copied before all were counted"
