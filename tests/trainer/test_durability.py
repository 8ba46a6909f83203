"""What a power cut can take. A checkpoint with its final name survives: every byte was flushed before the folder was renamed, and
its name right after. Of the published versions all survive but the newest, which a resume then publishes again.

No test can cut the power. This one sees `os.fsync` and `os.rename` as the kernel is asked for them, and reads at each what a disk
that keeps only what was flushed would have.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import DataError
from shared.processes.mongod import Mongod
from tests.trainer.builders import tiny_model
from tests.trainer.launched import exact_learner
from tests.trainer.published import Publishing, publish_bridge
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.process.parallel import Parallel
from trainer.publishing.weights import write_weights


class Disk:
    """`renamed`: the folders that got their final name. `unsafe`: what a power cut at that moment, or of the names now, would
    have lost. `at_risk`: the renamed folders of which it would lose something now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fsync, self._rename = os.fsync, os.rename
        self._flushed: dict[int, object] = {}  # by inode
        self._unflushed_names: set[Path] = set()
        self._unsafe: list[str] = []
        self.renamed: list[str] = []
        self._folders: list[Path] = []
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "rename", self.rename)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._flushed[path.stat().st_ino] = _content(path)
        self._unflushed_names = {named for named in self._unflushed_names if named.parent != path}

    def rename(self, source: Path, target: Path) -> None:
        source, target = Path(source), Path(target)  # torch's writer of checkpoints names its last file so, too
        self._unsafe += [str(target / path.relative_to(source)) for path in self._unflushed(source)]
        self._rename(source, target)
        self._unflushed_names.add(target)
        self.renamed.append(target.name)
        self._folders.append(target)

    def _unflushed(self, folder: Path) -> list[Path]:
        return [
            path for path in (folder, *folder.rglob("*")) if self._flushed.get(path.stat().st_ino) != _content(path)
        ]

    @property
    def unsafe(self) -> list[str]:
        return [*self._unsafe, *(f"the name {path}" for path in self._unflushed_names)]

    def at_risk(self) -> list[str]:
        return [path.name for path in self._folders if path in self._unflushed_names or self._unflushed(path)]


def _content(path: Path) -> object:
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else path.read_bytes()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def publishing(mongod: Mongod, alone: Parallel, tmp_path: Path) -> Iterator[Callable[..., Publishing]]:
    with publish_bridge(mongod) as bridge:
        tiny_model().float().save_pretrained(tmp_path / "model")
        yield lambda **options: Publishing(bridge, alone, tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"publish_mode": "full"}, ["full", "full", "full"]),
        ({"publish_mode": "delta"}, ["full", "delta", "full"]),
        ({"publish_mode": "adapter", "lora_rank": 4}, ["adapter", "adapter", "full"]),
    ],
)
def test_when_a_version_is_announced_all_earlier_ones_are_flushed_whole(
    publishing: Callable[..., Publishing],
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    kinds: list[str],
) -> None:
    run = publishing(max_steps=3, **options)
    versions = run.bridge.store.versions
    announce, at_announcement = versions.announce, []

    async def seen(*args: Any, **kwargs: Any) -> Any:
        at_announcement.append((list(disk.renamed), disk.at_risk()))
        return await announce(*args, **kwargs)

    monkeypatch.setattr(versions, "announce", seen)
    for step in (1, 2, 3):
        run.publisher.publish(step)
    names = ["step-000001-1", "step-000002-1", "step-000003-1"]
    assert at_announcement == [(names[:1], names[:1]), (names[:2], names[1:2]), (names, names[2:])]
    run.publisher.end()
    assert disk.at_risk() == []
    assert [v.kind for v in run.versions()[1:]] == kinds


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"publish_mode": "full"}, "model.safetensors"),
        ({"publish_mode": "delta"}, "weights.delta"),
        ({"publish_mode": "adapter", "lora_rank": 4}, "adapter/adapter_model.safetensors"),
    ],
)
@pytest.mark.parametrize(
    "damage", [lambda path: os.truncate(path, 0), lambda path: path.write_bytes(bytes(path.stat().st_size))]
)
def test_a_resume_publishes_again_the_version_of_its_step_that_a_power_cut_took(
    publishing: Callable[..., Publishing], options: dict[str, Any], file: str, damage: Callable[[Path], object]
) -> None:
    run = publishing(max_steps=5, **options)
    for step in (1, 2):
        run.publisher.publish(step)
    run.publisher.end()
    run.learner.steps_done = 2
    run.start()
    whole = run.versions()[2]
    assert (whole.step, whole.withdrawn_to, len(run.versions())) == (2, None, 4)  # the last only fences
    damage(Path(whole.path) / file)
    run.start()
    versions = run.versions()
    assert [(v.step, v.withdrawn_to) for v in versions if v.path] == [(0, None), (1, None), (2, 1), (2, None)]
    assert run.reach(versions[-1].version).version == versions[-1]


def test_a_disk_that_refuses_a_flush_ends_the_run(
    publishing: Callable[..., Publishing], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = publishing(max_steps=3)

    def refuses(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuses)
    run.publisher.publish(1)
    with pytest.raises(
        DataError, match=r"step-000001-1 could not be flushed to disk: .*Input/output error; repair the disk"
    ):
        run.publisher.publish(2)
    with pytest.raises(DataError, match="could not be flushed"):
        run.publisher.end()


def test_exported_weights_are_flushed_whole(tmp_path: Path, model_directory: Path, alone: Parallel, disk: Disk) -> None:
    write_weights(exact_learner(model_directory, alone).causal_lm, model_directory, tmp_path / "deep" / "v1", alone)
    assert (disk.renamed, disk.unsafe) == (["v1"], [])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_is_flushed_whole(
    tmp_path: Path, model_directory: Path, alone: Parallel, disk: Disk, asynchronous: bool
) -> None:
    checkpoints = Checkpoints(tmp_path, alone, asynchronous=asynchronous)
    checkpoints.save(exact_learner(model_directory, alone), {"seen": 1})
    checkpoints.settle(wait=True)
    assert (disk.renamed[-1], disk.unsafe) == ("step-000000", [])
