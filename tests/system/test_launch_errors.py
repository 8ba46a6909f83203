"""The launcher's display of errors of running children."""

import asyncio
import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shared.documents.run import Worker
from tandem.launch.children import Children, Program
from tandem.launch.display import Display
from tandem.launch.errors import MAX_BYTES, MAX_CHARS, MAX_KINDS, ErrorLines, Repeats, raised
from tandem.launch.figures import Snapshot

ROOT = Path(__file__).parents[2]
STAMP = "2026-11-22 07:15:01,123"
UNWELL = """
import logging, time
from shared.logs import begin_logging
begin_logging("INFO")
log = logging.getLogger("sampler.core.episode.episode")
log.warning("not an error")
for n in range(25):
    log.error("episode failed record=main:train:0:t%d:0:1 ScorerFailed: scorer 'mine' crashed", n)
time.sleep(600)
"""


async def test_an_error_in_a_running_childs_log_is_reported_once_and_then_with_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    enough = asyncio.Event()

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            enough.set()

    with Children("errors", ROOT) as children:
        children.note = tell
        child = children.start(Program("sampler 0", "sampler", [sys.executable, "-c", UNWELL], tmp_path / "log"))
        watching = asyncio.create_task(children.watch())
        await asyncio.wait_for(enough.wait(), 100)
        assert child.returncode is None
        watching.cancel()
        children.note = lambda text: None
    assert told[0].startswith(
        "sampler 0: episode failed record=main:train:0:t0:0:1 ScorerFailed: scorer 'mine' crashed"
    )
    assert len(told) == 2
    assert told[1].endswith("t9:0:1 ScorerFailed: scorer 'mine' crashed (10 times)")


def test_a_log_is_read_by_whole_lines_from_its_start_on_and_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    errors = ErrorLines(path, 4)
    assert errors.new() == [], "there is no log yet"
    path.write_text(f"old\n{STAMP} INFO a hello\n{STAMP} ERROR a.b no judge\nTraceback ERROR\n{STAMP} CRITICAL c di")
    assert errors.new() == ["no judge"]
    with path.open("a") as log:
        log.write(f"es\n{STAMP} ERROR a {'x' * 5000}\n")
    dies, long = errors.new()
    assert dies == "dies"
    assert len(long) <= MAX_CHARS
    with path.open("a") as log:
        log.write("y" * (2 * MAX_BYTES) + f"\n{STAMP} ERROR a last\n")
    assert errors.new() == ["last"]
    assert errors.new() == []


def test_the_exception_at_the_end_of_a_log_is_found_in_a_traceback_and_in_that_of_a_group() -> None:
    group = """  + Exception Group Traceback (most recent call last):
  |   File "x.py", line 1, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "y.py", line 7, in run
    | sampler.core.errors.EngineContractBroken: no ids
    | ValueError: not this: 5
    +------------------------------------
"""
    assert raised(group) == "ValueError: not this: 5"
    assert raised('Traceback (most recent call last):\n  File "a.py"\nKeyError: 1\n') == "KeyError: 1"
    assert raised(f"{STAMP} INFO a draining: episodes=3\nready\n") == ""
    logged = f"{STAMP} ERROR trainer rank=0 ConfigError: freeze 'x.*' matches no parameter\n"
    torchs = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrainer FAILED\n"
    assert raised(logged) == "rank=0 ConfigError: freeze 'x.*' matches no parameter"
    cause = "rank 0 (pid 7) ended with status 1: ConfigError: freeze 'x.*' matches no parameter"
    assert raised(f"{logged}{torchs}trainer.launch: {cause}\n") == cause


def test_kinds_of_errors_are_bounded() -> None:
    repeats = Repeats()
    texts = [repeats.shown("error " + "z" * n) for n in range(MAX_KINDS + 10)]
    assert [text for text in texts if text] == texts[:MAX_KINDS]


def test_the_alarm_of_a_live_sampler_is_reported_once() -> None:
    printed = io.StringIO()
    display = Display("run", Console(file=printed, width=200))
    for seconds in (3, 5):
        away = Worker(
            id="s", kind="sampler", host="h", pid=1, alarms=[f"no session with tool server x for {seconds} s"]
        )
        dead = Worker(id="d", kind="sampler", host="h", pid=2, alarms=["of the dead"])
        trains = Worker(id="t", kind="trainer", host="h", pid=3, alarms=["too few rewards"])
        display.snapshot = Snapshot(workers=[away, dead, trains], live=frozenset({"s", "t"}))
    (line,) = printed.getvalue().splitlines()
    assert line.endswith("sampler: no session with tool server x for 3 s")
