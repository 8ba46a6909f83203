"""A trainer that stands still while another takes its place, and then wakes: nothing of it takes the other's place."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.processes.guard import readable
from shared.processes.mongod import Mongod
from tests.trainer.builders import tiny_model
from tests.trainer.trainer_kills import PATIENCE_S, ROOT, Marks, fill, marks
from trainer.checkpoints.folders import complete
from trainer.checkpoints.restore import STATE_FILE


class Trainers:
    """See `tests.trainer.zombie_child`."""

    def __init__(self, folder: Path, database: str) -> None:
        self._database, self.folder = database, folder
        self.log = folder / "trainers.log"
        with self.log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.trainer.zombie_child", str(folder / "model")],
                cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, bufsize=0,
            )  # fmt: skip

    def start(self, run: str, stop_at: str = "", nth: int = 0, by_a_thread: bool = True) -> tuple[int, str]:
        """Its pid, and "stopped" or how it ended."""
        order = {"run": run, "db": self._database, "output_dir": str(self.folder / run), "stop_at": stop_at, "nth": nth}
        order["async_checkpoints"] = by_a_thread
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return self.word()

    def wake(self, pid: int) -> tuple[int, str]:
        os.kill(pid, signal.SIGCONT)
        return self.word()

    def word(self) -> tuple[int, str]:
        assert self._process.stdout
        while True:
            ready = readable([self._process.stdout.fileno()], PATIENCE_S)
            line = self._process.stdout.readline().decode() if ready else ""
            assert line, f"no word from the trainers: {self.log.read_text()[-3000:]}"
            pid, what = line.strip().split(" ", 1)
            if what == "stopped" or what.startswith("ended"):
                return int(pid), what

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory, mongod: Mongod) -> Iterator[Trainers]:
    folder = tmp_path_factory.mktemp("zombies")
    tiny_model(dtype=torch.float32).save_pretrained(folder / "model")
    opened = Trainers(folder, mongod.connection_string)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def unbroken(trainers: Trainers, mongod: Mongod) -> Marks:
    asyncio.run(fill(mongod.connection_string, "zombies-unbroken"))
    assert trainers.start("zombies-unbroken")[1] == "ended 0", trainers.log.read_text()[-3000:]
    return asyncio.run(marks(mongod.connection_string, "zombies-unbroken"))


# Of the first checkpoint, of step 2: there is none before it, so the successor begins from step 0, and saves step 2 as well.
# Written by a thread, it gets its name after the next version: what is flushed and named first is that version.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "by_a_thread"),
    [
        ("mkdtemp", False),
        *(pytest.param(one, False, marks=pytest.mark.thorough) for one in ("tensors", "question", "flush", "name")),
        pytest.param("question", True, marks=pytest.mark.thorough),
        ("name", True),
    ],
)
def test_a_trainer_that_wakes_in_the_middle_of_a_write_leaves_nothing_and_its_successor_loses_nothing(
    trainers: Trainers, mongod: Mongod, unbroken: Marks, write: str, by_a_thread: bool
) -> None:
    run = f"zombies-{write}-{by_a_thread}"
    asyncio.run(fill(mongod.connection_string, run))
    zombie, said = trainers.start(run, write, 3 if write == "flush" else 1, by_a_thread)
    assert said == "stopped"
    heir, said = trainers.start(run, "begin", 1)  # it has taken over, and nothing is trained yet
    assert said == "stopped"
    assert trainers.wake(zombie) == (zombie, "ended 1")
    assert f"{zombie} LeaseLost: " in trainers.log.read_text()  # of the checkpoint, or of the version after it
    checkpoints = trainers.folder / run / "checkpoints"
    assert complete(checkpoints) == []
    assert trainers.wake(heir) == (heir, "ended 0"), trainers.log.read_text()[-3000:]
    assert [path.name for path in complete(checkpoints)] == ["step-000002", "step-000004"]
    assert {json.loads((p / STATE_FILE).read_text())["trainer_generation"] for p in complete(checkpoints)} == {2}
    assert sorted(checkpoints.iterdir()) == complete(checkpoints), "nothing unfinished is left"
    assert asyncio.run(marks(mongod.connection_string, run)) == unbroken
