"""Trainers killed at any instant: python -m tests.trainer.trainer_kills [--kills 30] [--seed 0]

A run with its data already in the database is trained once without a break, and again and again with kills of -9: in the
middle of loading a batch, of reading ahead, an optimizer step, a commit, a checkpoint and a publication, by turns. Each
trainer continues from what the one before it left. The last one's parameters must be those of the unbroken run bit for bit,
and so must every record's marks.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import load_file

from shared.documents import DispatchedSamplingTask
from shared.documents.states import RunState
from shared.processes.guard import readable
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.tokens.flatten import data_fields, flatten
from tests.sampler.builders import make_dispatch
from tests.shared.builders import make_data, make_task
from tests.trainer.builders import tiny_model
from tests.trainer.training_child import GROUPS_PER_STEP, MAX_STEPS, PHASES

ROOT = Path(__file__).parents[2]
GROUP_SIZE = 3
PATIENCE_S = 240.0  # for a word of the trainers; the first comes after the import of torch
Marks = dict[str, tuple[list[int], str]]


@dataclass
class Found:
    """What the kills hit, and what came out."""

    kills: Counter[str] = field(default_factory=Counter)  # by phase
    runs: int = 0  # trained to the end in spite of them
    wrong_parameters: int = 0
    wrong_marks: int = 0
    wrong_ends: int = 0  # killed, and said to have ended; or the other way round


class Nursery:
    """Trainers, one at a time; see `tests.trainer.training_child`."""

    def __init__(self, model_directory: Path, database: str, folder: Path, log: Path) -> None:
        self._database, self._folder = database, folder
        command = [sys.executable, "-m", "tests.trainer.training_child", str(model_directory)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, bufsize=0,  # `select` does not see what a buffer holds already
            )  # fmt: skip
        self._log = log

    def train(self, run: str, kill_at: tuple[str, int, float] | None = None, output_dir: Path | None = None) -> bool:
        """Train `run` to its end: True. `kill_at` (phase, n, s): -9, `s` seconds after its n-th beginning: False."""
        order = {"run": run, "db": self._database, "output_dir": str(output_dir or self._folder / run)}
        self._say(json.dumps(order).encode())
        begun = 0
        while True:
            pid, what, *status = self._line().split()
            if what == "ended":
                self._say(b"")
                assert status in (["0"], ["-9"]), f"a trainer failed: {self._log.read_text()[-3000:]}"
                return status == ["0"]
            begun += kill_at is not None and what == kill_at[0]
            if kill_at is not None and begun == kill_at[1]:
                time.sleep(kill_at[2])
                os.kill(int(pid), signal.SIGKILL)  # it may have ended: then it is a zombie until its end is answered
                kill_at = None

    def _say(self, line: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout
        ready = readable([self._process.stdout.fileno()], PATIENCE_S)
        line = self._process.stdout.readline().decode() if ready else ""
        if not line:
            raise TimeoutError(f"no word from the trainers: {self._log.read_text()[-3000:]}")
        return line

    def close(self) -> None:
        """Once its trainer has ended; where a test failed before that, its trainer is left to end by itself."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.stdout.close()


def random_episode(rng: np.random.Generator, record: str) -> list[DispatchedSamplingTask]:
    """Up to four requests, each continuing the last one or an earlier place of it, sampled by version 0."""
    dispatches: list[DispatchedSamplingTask] = []
    length = 0
    for turn in range(rng.integers(1, 5)):
        shared = int(rng.integers(1, length + 1)) if turn else 0
        prompt = rng.integers(5, 12, size=rng.integers(1, 5)).tolist()
        reply = rng.integers(0, 5, size=rng.integers(1, 6)).tolist()
        parent = turn - 1 if turn else None
        dispatches.append(make_dispatch(record, turn, prompt, reply, parent=parent, shared_length=shared))
        length = shared + len(prompt) + len(reply)
    return dispatches


async def fill(database: str, run: str) -> None:
    """Groups enough for every step; the same for every run."""
    rng = np.random.default_rng(7)
    async with Store.open(database, run) as store:
        for seq in range(MAX_STEPS * GROUPS_PER_STEP):
            task, group = make_task(seq), []
            for k in range(GROUP_SIZE):
                episode = random_episode(rng, f"{task.id}:{k}:1")
                advantages = {dispatch.id: float(rng.choice([1.3, -0.7, 0.4])) for dispatch in episode}
                fields = data_fields(flatten(f"{task.id}:{k}:1", episode, advantages))
                group.append(make_data(task, k, group_size=GROUP_SIZE, **fields))
                for dispatch in episode:
                    await store.records.open_dispatch(dispatch)
            await store.data.write_group(group)


async def marks(database: str, run: str) -> Marks:
    async with Store.open(database, run) as store:
        return {data.id: (data.trained_steps, data.status.value) for data in await store.data.find({})}


async def said_to_have_ended(database: str, run: str) -> bool:
    async with Store.open(database, run) as store:
        found = await store.runs.read()
        assert (found.state is RunState.ENDED) == ("main" in found.ends)
        return "main" in found.ends and found.ends["main"].step == MAX_STEPS


def parameters(folder: Path, run: str) -> dict[str, torch.Tensor]:
    """Those of the last publication."""
    published = (folder / run / "versions").glob(f"step-{MAX_STEPS:06d}-*")  # again by each start after a kill
    newest = max(published, key=lambda path: int(path.name.rpartition("-")[2]))
    return load_file(newest / "model.safetensors")


@contextmanager
def nursery(database: str, folder: Path) -> Iterator[Nursery]:
    model = folder / "model"
    tiny_model(dtype=torch.float32).save_pretrained(model)
    opened = Nursery(model, database, folder, folder / "trainers.log")
    try:
        yield opened
    finally:
        opened.close()


def kill_many(database: str, folder: Path, kills: int, seed: int = 0) -> Found:
    """Kill as often, the phases by turns, in as many runs as that takes; every run is trained to its end after its kills."""
    rng, found = random.Random(seed), Found()
    phases = list(PHASES)
    with nursery(database, folder) as trainers:
        asyncio.run(fill(database, "unbroken"))
        assert trainers.train("unbroken")
        expected, expected_marks = parameters(folder, "unbroken"), asyncio.run(marks(database, "unbroken"))
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("kills", total=kills)
            while sum(found.kills.values()) < kills:
                run = f"broken-{found.runs}"
                asyncio.run(fill(database, run))
                ended = False
                while not ended:
                    so_far = sum(found.kills.values())
                    phase = phases[so_far % len(phases)]
                    nth = rng.randint(1, 2 if phase == "checkpoint" else 4)
                    ended = trainers.train(run, (phase, nth, rng.uniform(0, 0.03)) if so_far < kills else None)
                    found.wrong_ends += asyncio.run(said_to_have_ended(database, run)) != ended
                    if not ended:
                        found.kills[phase] += 1
                        progress.advance(bar)
                found.runs += 1
                got = parameters(folder, run)
                found.wrong_parameters += not all(torch.equal(got[name], expected[name]) for name in expected)
                found.wrong_marks += asyncio.run(marks(database, run)) != expected_marks
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the instants (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Mongod(Path(folder) / "mongodb") as server:
        found = kill_many(server.connection_string, Path(folder), args.kills, args.seed)
    by_phase = ", ".join(f"{n} in {phase}" for phase, n in sorted(found.kills.items()))
    sys.stdout.write(
        f"{sum(found.kills.values())} kills ({by_phase}); {found.runs} runs trained to their end: "
        f"{found.wrong_parameters} with other parameters than the unbroken one, {found.wrong_marks} with other marks\n"
    )
    sys.exit(1 if found.wrong_parameters or found.wrong_marks else 0)


if __name__ == "__main__":
    main()
