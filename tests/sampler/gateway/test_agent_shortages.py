"""An agent's command on a machine that lacks something now: no setting is wrong, and no other episode is touched."""

import errno
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sampler.core.errors import CommandNotStarted
from sampler.gateway.child import run_command
from sampler.gateway.server import OpenAttempt
from sampler.gateway.workplace import RunningCommand, Workplace
from shared.errors import ConfigError

GIVEN: dict[str, Any] = {"model": "main", "messages": [{"content": "?"}], "payload": {"query": "?"}}
ATTEMPT = OpenAttempt("http://127.0.0.1:1", "sk-none")


class Place:
    """A workplace in which no process can be started."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number

    @asynccontextmanager
    async def workplace(
        self, kept: Path | None, command: Sequence[str], url: str, uncounted: Any
    ) -> AsyncIterator[Workplace]:
        async def start(words: Sequence[str], variables: Mapping[str, str]) -> RunningCommand:
            raise OSError(self._number, "no")

        yield Workplace(self._folder, None, None, start)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOENT, ConfigError),
        (errno.EACCES, ConfigError),
        (errno.EMFILE, CommandNotStarted),
        (errno.EAGAIN, CommandNotStarted),
        (errno.ENOMEM, CommandNotStarted),
        (errno.ENOSPC, CommandNotStarted),
    ],
)
async def test_what_may_pass_is_no_wrong_setting(tmp_path: Path, number: int, error: type[Exception]) -> None:
    place: Any = Place(tmp_path, number)
    with pytest.raises(error):
        await run_command("agent", ATTEMPT, **GIVEN, kept=None, isolated=place)


async def test_a_task_that_cannot_be_written_may_be_written_later(tmp_path: Path) -> None:
    place: Any = Place(tmp_path / "away", errno.ENOENT)
    with pytest.raises(CommandNotStarted, match="the task cannot be written"):
        await run_command("agent", ATTEMPT, **GIVEN, kept=None, isolated=place)


async def test_a_full_disk_costs_the_output_that_is_kept_alone(tmp_path: Path) -> None:
    (kept := tmp_path / "kept").mkdir()
    (kept / "stdout.txt").symlink_to("/dev/full")
    ended = await run_command(
        shlex.join([sys.executable, "-c", 'print(1); print("x" * 1_000_000); print(2)']), ATTEMPT, **GIVEN, kept=kept
    )
    assert (ended.status, ended.stdout[-2:]) == (0, "\n2")
