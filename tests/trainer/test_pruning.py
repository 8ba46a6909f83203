"""What pruning deletes and what it spares: nothing that is still evaluated, and nothing that this is put together from."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.mongod import Mongod
from shared.weights.assembly import Assembly
from tests.shared.rounds import import_set, play
from tests.trainer.published import Trained, publish_bridge
from trainer.process.parallel import Parallel

SCORES: dict[str, list[float | None]] = {tid: [1.0, 0.0] for tid in ("t0", "t1", "t2")}


@pytest.fixture
def trained(mongod: Mongod, alone: Parallel, tmp_path: Path) -> Iterator[Callable[..., Trained]]:
    with publish_bridge(mongod) as bridge:
        yield lambda **options: Trained(bridge, alone, tmp_path, **options)


def there(run: Trained) -> list[int]:
    """The versions with files, which are those that are not marked as pruned."""
    found = [v.version for v in run.versions()[1:] if Path(v.path).is_dir()]
    assert found == [v.version for v in run.versions()[1:] if not v.pruned]
    return found


@pytest.mark.parametrize(("mode", "spared"), [("full", [3]), ("delta", [1, 2, 3])])
def test_pruning_spares_a_version_until_the_last_task_of_its_round_is_settled(
    trained: Callable[..., Trained], mode: str, spared: list[int]
) -> None:
    """Of changes, also the versions before it, back to a complete one."""
    run = trained(publish_mode=mode, full_every=4, keep_versions=2)
    store = run.bridge.store
    run.bridge(import_set(store))
    run.bridge(play(store, SCORES, 0))
    for step in (1, 2, 3):
        run.step(step)
    run.bridge(store.evaluation.queue_round("main", 3))
    for step in range(4, 10):
        run.step(step)
    assert there(run) == [*spared, *([8, 9] if mode == "full" else [5, 6, 7, 8, 9])]
    run.assert_whole(Assembly(run.folder / "evaluator").reach(run.versions()[3], run.versions()))
    run.bridge(play(store, SCORES, 3, limit=5))
    run.step(10)
    assert there(run)[: len(spared)] == spared, "one slot of the round is still to be played"
    run.bridge(play(store, {"t2": [0.0]}, 3))
    run.step(11)
    assert there(run) == ([10, 11] if mode == "full" else [9, 10, 11])


def test_pruning_spares_the_version_of_an_engine_for_it_alone(trained: Callable[..., Trained]) -> None:
    """Whether that engine is up or not: its keeper may start again."""
    run = trained(publish_mode="full", keep_versions=2)
    values: dict[str, Any] = {"id": "http://a:1", "url": "http://a:1", "version": 1, "status": ServiceStatus.DOWN}
    run.bridge(run.bridge.store.services.heartbeat(InferenceService(**values, policy="main", serve_version=2)))
    for step in range(1, 7):
        run.step(step)
    assert there(run) == [2, 5, 6]


def test_pruning_deletes_no_folder_outside_the_output_directory(trained: Callable[..., Trained]) -> None:
    """Version 0 is the model that the run starts from; another version may be announced by hand."""
    run = trained(publish_mode="full", keep_versions=2)
    given = run.folder / "given"
    given.mkdir()
    (given / "kept").write_text("by its owner")
    run.bridge(run.bridge.store.versions.announce("main", 0, str(given), {}, trainer_generation=1))
    for step in (1, 2, 3, 4):
        run.step(step)
    assert [v.version for v in run.versions() if not v.pruned] == [0, 1, 4, 5]
    assert (given / "kept").exists()
    assert (run.model / "config.json").exists()
