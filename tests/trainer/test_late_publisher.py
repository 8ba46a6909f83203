"""A publisher whose trainer was replaced, and that does not know it yet: it announces nothing that stays, and deletes nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.documents.run import Admission
from shared.errors import LeaseLost
from shared.processes.mongod import Mongod
from tests.late_commands import everything
from tests.trainer.published import Trained, publish_bridge
from trainer.process.parallel import Parallel


@pytest.fixture
def trained(mongod: Mongod, alone: Parallel, tmp_path: Path) -> Iterator[Callable[..., Trained]]:
    with publish_bridge(mongod) as bridge:
        yield lambda **options: Trained(bridge, alone, tmp_path, **options)


def folders(run: Trained) -> dict[str, set[str]]:
    """Every published version's files."""
    return {
        folder.name: {str(path.relative_to(folder)) for path in folder.rglob("*")}
        for folder in (run.folder / "out" / "versions").iterdir()
    }


@pytest.mark.parametrize("mode", ["full", "delta"])
@pytest.mark.parametrize("published_since", [0, 1, 3])
def test_a_publisher_that_was_replaced_announces_nothing_and_deletes_nothing(
    trained: Callable[..., Trained], mode: str, published_since: int
) -> None:
    run = trained(publish_mode=mode, keep_versions=2)
    for step in (1, 2):
        run.step(step)
    late = run.publisher
    run.learner.steps_done = 2
    run.start()  # from step 2, which is published already
    for step in range(3, 3 + published_since):
        run.step(step)
    documents, files = run.bridge(everything(run.bridge.store.database)), folders(run)
    for _ in range(2):  # also when it tries again
        with pytest.raises(LeaseLost, match="trainer generation 2 has replaced generation 1; step 3 is not announced"):
            late.publish(3)
    assert run.bridge(everything(run.bridge.store.database)) == documents
    found = folders(run)
    assert {name: found[name] for name in files} == files
    assert {name.rpartition("-")[2] for name in found.keys() - files.keys()} <= {"1"}, "only its own are new"
    run.step(3 + published_since)
    run.assert_whole(run.reach(len(run.versions()) - 1))


def test_what_an_old_publisher_announces_while_a_new_one_starts_is_withdrawn_with_what_the_resume_undoes(
    trained: Callable[..., Trained],
) -> None:
    """The new trainer has its number already, and its publisher has not begun."""
    run = trained(publish_mode="full", keep_versions=9)
    run.step(1)
    admission = Admission(groups_per_step=1, max_staleness=1)
    run.bridge(run.bridge.store.runs.start_trainer("main", admission))
    run.step(2)
    run.learner.steps_done = 1
    run.start()
    assert [(v.step, v.withdrawn_to) for v in run.versions()] == [(0, None), (1, None), (2, 1), (1, 1)]
    newest = run.bridge(run.bridge.store.versions.newest("main"))
    assert newest is not None
    assert newest.version == 1


def test_every_version_says_which_start_of_the_trainer_announced_it(trained: Callable[..., Trained]) -> None:
    run = trained(publish_mode="full", keep_versions=9)
    run.step(1)
    run.learner.steps_done = 1
    run.start()
    run.step(2)
    assert [v.trainer_generation for v in run.versions()] == [0, 1, 2, 2]
