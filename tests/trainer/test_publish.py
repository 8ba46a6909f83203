"""Versions as the trainer publishes them: complete or as changes, whole for every follower, kept as long as they are needed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.documents.run import InferenceService
from shared.documents.states import OfferState, ServiceStatus
from shared.errors import DataError
from shared.processes.mongod import Mongod
from shared.weights.assembly import Assembly
from shared.weights.files import DELTA_FILE, WEIGHTS_FILE
from tests.full_disk import room_for
from tests.trainer.published import Trained, publish_bridge
from trainer.process.parallel import Parallel


@pytest.fixture
def trained(mongod: Mongod, alone: Parallel, tmp_path: Path) -> Iterator[Callable[..., Trained]]:
    with publish_bridge(mongod) as bridge:
        yield lambda **options: Trained(bridge, alone, tmp_path, **options)


def test_the_version_of_the_last_step_is_complete(trained: Callable[..., Trained]) -> None:
    run = trained(max_steps=3)
    assert [run.step(step)["publish/full"] for step in (1, 2, 3)] == [1, 0, 1]


def test_a_full_disk_is_said_and_leaves_nothing_and_a_start_removes_what_killed_ones_left(
    trained: Callable[..., Trained],
) -> None:
    run = trained(publish_mode="full")
    run.step(1)
    folder = run.folder / "out" / "versions"
    with room_for(5_000), pytest.raises(DataError, match=r"step-000002-1 could not be written: .*; free disk space"):
        run.publisher.publish(2)
    assert [path.name for path in folder.iterdir()] == ["step-000001-1"]
    assert [v.step for v in run.versions()] == [0, 1]
    left = folder / "step-000002-1.tmp-abc"
    left.mkdir()
    run.start()
    assert not left.exists()


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_changes_put_together_are_the_complete_files_byte_for_byte(
    trained: Callable[..., Trained], dtype: str | None
) -> None:
    run = trained(full_every=3, keep_versions=50, publish_dtype=dtype)
    metrics = [run.step(step) for step in range(1, 8)]
    assert [v.kind for v in run.versions()] == ["full", "full", "delta", "delta", "full", "delta", "delta", "full"]
    assert [v.base for v in run.versions()] == [None, None, 1, 2, 3, 4, 5, 6]
    for number in (7, 3, 6, 2):
        reached = run.reach(number)
        assert reached.version.version == number
        run.assert_whole(reached)
    assert [m["publish/full"] for m in metrics] == [1, 0, 0, 1, 0, 0, 1]
    assert 0.02 < metrics[1]["publish/changed_fraction"] < 0.11
    assert metrics[1]["publish/bytes"] < metrics[0]["publish/bytes"] / 2


def test_an_older_complete_version_and_its_changes_stand_in_for_a_damaged_newer_one(
    trained: Callable[..., Trained],
) -> None:
    run = trained(full_every=3, keep_versions=50)
    for step in range(1, 7):
        run.step(step)
    newest_full = Path(run.versions()[4].path) / WEIGHTS_FILE
    damaged = bytearray(newest_full.read_bytes())
    damaged[-100] ^= 4
    newest_full.write_bytes(damaged)
    reached = run.reach(6)
    assert reached.version.version == 6
    run.assert_whole(reached)


@pytest.mark.parametrize("damage", ["flipped bit", "cut", "missing"])
def test_a_damaged_delta_is_passed_by_a_later_complete_version_and_never_over(
    trained: Callable[..., Trained], damage: str
) -> None:
    run = trained(full_every=4, keep_versions=50)
    for step in range(1, 5):
        run.step(step)
    delta = Path(run.versions()[3].path) / DELTA_FILE
    data = bytearray(delta.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "missing":
        delta.unlink()
    else:
        delta.write_bytes(data if damage == "flipped bit" else data[:-7])
    part_way = run.reach(4)
    assert part_way.version.version == 2
    assert "weights.delta" in part_way.problems[0]
    run.assert_whole(part_way)
    with pytest.raises(DataError, match=r"version 4 cannot be assembled: .*weights\.delta"):
        run.reach(4, newer_than=2)
    run.step(5)
    reached = run.reach(5, newer_than=2)
    assert (reached.version.version, reached.version.kind, reached.problems) == (5, "full", ())
    run.assert_whole(reached)


def test_a_damaged_cache_is_thrown_away(trained: Callable[..., Trained]) -> None:
    run = trained(keep_versions=50)
    for step in range(1, 4):
        run.step(step)
    cached = run.reach(2).folder / WEIGHTS_FILE
    cached.write_bytes(cached.read_bytes()[:-1] + b"\x55")
    run.step(4)
    reached = run.reach(4)
    assert reached.version.version == 4
    run.assert_whole(reached)
    assert not cached.exists()


def test_pruning_keeps_what_the_kept_versions_are_put_together_from(trained: Callable[..., Trained]) -> None:
    run = trained(full_every=4, keep_versions=2)
    for step in range(1, 12):
        run.step(step)
        there = [v.version for v in run.versions()[1:] if Path(v.path).is_dir()]
        assert there == [v.version for v in run.versions()[1:] if not v.pruned]
        for number in range(max(1, step - 1), step + 1):
            fresh = Assembly(run.folder / f"late-{step}-{number}")
            run.assert_whole(fresh.reach(run.versions()[number], run.versions()))
    assert [v.version for v in run.versions()[1:] if not v.pruned] == [9, 10, 11]


def test_an_engine_that_asks_is_answered_with_a_complete_version_once(trained: Callable[..., Trained]) -> None:
    run = trained(keep_versions=50)
    run.step(1)
    run.step(2)
    run.publisher.answer_requests()
    assert len(run.versions()) == 3, "no engine asked"
    run.ask_for_full(2)
    run.learner.steps_done = 2
    run.publisher.answer_requests()
    run.publisher.answer_requests()
    again = run.versions()[3:]
    assert [(v.version, v.step, v.kind, v.base) for v in again] == [(3, 2, "full", 2)]
    run.assert_whole(Assembly(run.folder / "late").reach(again[0], again))
    assert run.step(3)["publish/full"] == 0
    run.ask_for_full(4)
    assert run.step(4)["publish/full"] == 1


def test_every_start_of_the_trainer_begins_with_a_complete_version(trained: Callable[..., Trained]) -> None:
    run = trained(keep_versions=50)
    run.step(1)
    run.step(2)
    run.start()  # from step 0 again: what came after is withdrawn
    assert [v.withdrawn_to for v in run.versions()] == [None, 0, 0, 0], (
        "the last is the number that fences the first off"
    )
    run.step(1)
    assert [(v.kind, v.base) for v in run.versions()[4:]] == [("full", None)]
    run.assert_whole(run.reach(4))


def test_a_trainer_waits_for_no_engine_that_may_join_a_broadcast(trained: Callable[..., Trained]) -> None:
    """An engine that could join, and does not: the versions meanwhile go by disk, where every version is in any case."""
    run = trained(
        publish_mode="full", weight_transport="broadcast", broadcast_address="127.0.0.1", broadcast_join_s=600
    )
    silent = InferenceService(
        id="e",
        url="e",
        policy="main",
        version=0,
        status=ServiceStatus.UP,
        kind="local",
        broadcast_ranks=1,
        heartbeat_s=3600,
    )
    run.bridge(run.bridge.store.services.heartbeat(silent))
    for step in (1, 2, 3):
        assert not run.step(step).keys() & {"publish/broadcast_engines", "publish/broadcast_failed"}
    offers = [v.offer for v in run.versions()]
    assert [offer and offer.state for offer in offers] == [None, OfferState.OPEN, None, None]
    run.bridge(run.bridge.store.services.set_status("e", ServiceStatus.DOWN))
    run.publisher.end()
    assert [v.offer and v.offer.state for v in run.versions()][1] is OfferState.UNUSED
    assert run.step(4)["publish/broadcast_engines"] == 0
    for number in (1, 2, 3, 4):
        assert run.reach(number).version.version == number
        run.assert_whole(run.reach(number))
    run.publisher.end()


def test_the_offers_of_an_earlier_start_are_void(trained: Callable[..., Trained]) -> None:
    run = trained(
        publish_mode="full", weight_transport="broadcast", broadcast_address="127.0.0.1", broadcast_join_s=600
    )
    silent = InferenceService(
        id="e", url="e", policy="main", version=0, status=ServiceStatus.UP, broadcast_ranks=1, heartbeat_s=3600
    )
    run.bridge(run.bridge.store.services.heartbeat(silent))
    run.step(1)
    first = run.publisher
    run.start()
    assert [v.offer and v.offer.state for v in run.versions()] == [None, OfferState.FAILED, None]
    run.bridge(run.bridge.store.services.set_status("e", ServiceStatus.DOWN))
    first.end()
    assert [v.offer and v.offer.state for v in run.versions()] == [None, OfferState.FAILED, None]
