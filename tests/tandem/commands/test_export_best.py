"""`tandem export-model --best` exports the step that `tandem eval` shows as the best, of the checkpoints that are kept."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from shared.files.output_names import step_folder
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.episodes import announce
from tests.shared.rounds import SOURCES, import_set, play
from tests.tandem.commands.commands import Command

RUN = "export-best"
REWARDS = {0: 0.0, 5: 0.5, 10: 1.0, 15: 0.5}  # by step; versions 0 to 3


@pytest.fixture
def evaluated(mongod: Mongod) -> Iterator[None]:
    async def fill() -> None:
        async with Store.open(mongod.connection_string, RUN) as store:
            await import_set(store)
            for version, (step, reward) in enumerate(REWARDS.items()):
                await announce(store, step)
                await store.evaluation.queue_round("main", version)
                await play(store, {tid: [reward, reward] for tid in SOURCES}, version)

    asyncio.run(fill())
    yield
    with pymongo.MongoClient[dict[str, object]](mongod.connection_string) as client:
        client.drop_database(RUN)


def test_the_best_kept_step_is_that_of_the_database(
    tandem: Command, evaluated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a metrics.jsonl, which has the last rounds only after later steps."""
    exported: list[str] = []

    def run(words: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        exported.append(Path(words[words.index("--checkpoint") + 1]).name)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr("tandem.commands.export.subprocess.run", run)
    checkpoints = Path("output") / RUN / "checkpoints"
    (checkpoints / step_folder(7)).mkdir(parents=True)
    refused = tandem("export-model", RUN, "--best")
    assert (refused.exit_code, "no kept checkpoint was evaluated; kept: 7" in refused.stderr) == (2, True)
    for step in (5, 15):
        (checkpoints / step_folder(step)).mkdir()
    better = tandem("export-model", RUN, "--best")
    assert "step 10 was better (1.000), but its checkpoint is not kept; step 15: 0.500" in better.stderr
    (checkpoints / step_folder(10)).mkdir()
    assert tandem("export-model", RUN, "--best").exit_code == 0
    assert exported == [step_folder(15), step_folder(10)]
    assert tandem("export-model", RUN, "--best", "--step", "5").exit_code == 2
