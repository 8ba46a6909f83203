"""The trainer's accounting: whole groups are borrowed, committed, released, undone."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.documents import DataClaim
from shared.documents.run import PolicyVersion
from shared.documents.states import DataStatus
from shared.errors import DataError
from shared.store import Store
from shared.weights.files import FileEntry
from tests.shared.builders import make_data, make_task


async def write_groups(store: Store, n: int, *, version: int = 0) -> list[list[str]]:
    groups = []
    for seq in range(n):
        task = make_task(seq)
        data = [make_data(task, k, version=version) for k in range(2)]
        await store.data.write_group(data)
        groups.append([d.id for d in data])
    return groups


async def test_only_whole_groups_are_offered_and_the_oldest_come_first(store: Store) -> None:
    groups = await write_groups(store, 3)
    half = make_task(7)
    await store.data.write_group([make_data(half, 0)])
    found = await store.data.ready_groups("main", 10)
    assert [sorted(row["records"]) for row in found] == groups


async def test_borrowed_data_is_not_offered_again(store: Store) -> None:
    groups = await write_groups(store, 2)
    assert await store.data.claim(groups[0], DataClaim(trainer_generation=1, step=1)) == 2
    assert await store.data.claim(groups[0], DataClaim(trainer_generation=1, step=2)) == 0
    assert [row["_id"] for row in await store.data.ready_groups("main", 10)] == ["main:train:0:t1"]


async def test_a_commit_marks_what_was_borrowed_for_that_step_and_repeats_harmlessly(store: Store) -> None:
    groups = await write_groups(store, 2)
    claim = DataClaim(trainer_generation=1, step=5)
    await store.data.claim(groups[0], claim)
    assert sorted(await store.data.commit_step("main", claim, max_trained_count=1)) == groups[0]
    assert sorted(await store.data.commit_step("main", claim, max_trained_count=1)) == groups[0]
    used = await store.data.find({"_id": {"$in": groups[0]}})
    assert {(d.status, d.trained_count, d.last_trained_step, d.claim) for d in used} == {
        (DataStatus.TRAINED, 1, 5, None)
    }


async def test_the_trainers_of_two_policies_use_and_undo_only_their_own_data(store: Store) -> None:
    """Both are at the same step of the same start, so that their claims are equal."""
    claim = DataClaim(trainer_generation=1, step=1)
    ids = {}
    for policy in ("walker", "guide"):
        data = [make_data(make_task(0, policy=policy), k) for k in range(2)]
        await store.data.write_group(data)
        ids[policy] = [d.id for d in data]
        assert await store.data.claim(ids[policy], claim) == 2
    assert sorted(await store.data.commit_step("walker", claim, max_trained_count=1)) == ids["walker"]
    waiting = await store.data.find({"policy": "guide"})
    assert {(d.trained_count, d.claim) for d in waiting} == {(0, claim)}
    await store.data.commit_step("guide", claim, max_trained_count=1)
    assert await store.data.rewind("guide", 0, max_trained_count=1) == 2
    assert {d.trained_count for d in await store.data.find({"policy": "walker"})} == {1}


async def test_data_below_its_training_count_is_offered_again(store: Store) -> None:
    groups = await write_groups(store, 1)
    for step in (1, 2):
        claim = DataClaim(trainer_generation=1, step=step)
        assert await store.data.claim(groups[0], claim) == 2
        await store.data.commit_step("main", claim, max_trained_count=2)
    (first, _) = await store.data.find({})
    assert (first.status, first.trained_steps) == (DataStatus.TRAINED, [1, 2])


async def test_a_resume_undoes_every_mark_above_its_step_and_none_below(store: Store) -> None:
    groups = await write_groups(store, 3)
    for step, group in enumerate(groups, start=1):
        claim = DataClaim(trainer_generation=1, step=step)
        await store.data.claim(group, claim)
        await store.data.commit_step("main", claim, max_trained_count=1)
    assert await store.data.rewind("main", 1, max_trained_count=1) == 4
    offered = [sorted(row["records"]) for row in await store.data.ready_groups("main", 10)]
    assert offered == groups[1:]
    kept = await store.data.find({"_id": {"$in": groups[0]}})
    assert {d.last_trained_step for d in kept} == {1}


async def test_a_new_trainer_releases_data_borrowed_by_a_dead_one(store: Store) -> None:
    groups = await write_groups(store, 1)
    await store.data.claim(groups[0], DataClaim(trainer_generation=1, step=3))
    assert await store.data.release_claims("main", trainer_generation=2) == 2
    assert len(await store.data.ready_groups("main", 10)) == 1
    # the dead one's late commit finds nothing of its own any more
    assert await store.data.commit_step("main", DataClaim(trainer_generation=1, step=3), max_trained_count=1) == []


async def test_data_set_aside_is_kept_counted_and_ready_again_after_a_resume(store: Store) -> None:
    groups = await write_groups(store, 2)
    await store.data.set_aside(groups[0], DataStatus.STALE, "4 steps behind")
    assert await store.data.count_by_status() == {DataStatus.STALE: 2, DataStatus.READY: 2}
    await store.data.rewind("main", 0, max_trained_count=1)
    assert await store.data.count_by_status() == {DataStatus.READY: 4}


async def test_writing_a_group_again_keeps_the_marks_of_what_was_trained(store: Store) -> None:
    task = make_task(0)
    data = [make_data(task, k) for k in range(2)]
    await store.data.write_group(data)
    claim = DataClaim(trainer_generation=1, step=1)
    await store.data.claim([d.id for d in data], claim)
    await store.data.commit_step("main", claim, max_trained_count=1)
    await store.data.write_group(data)
    assert {d.status for d in await store.data.find({})} == {DataStatus.TRAINED}


def version(number: int, step: int, withdrawn_to: int | None = None) -> PolicyVersion:
    return PolicyVersion(
        id=f"main:{number}", policy="main", version=number, step=step, path="p", files={}, withdrawn_to=withdrawn_to
    )


def test_staleness_is_the_number_of_optimizer_steps_between_two_sets_of_weights() -> None:
    assert version(3, step=3).staleness(5) == 2
    assert version(57, step=57, withdrawn_to=50).staleness(50) == 7  # from the dead branch back to where it parted
    assert version(57, step=57, withdrawn_to=50).staleness(52) == 9  # and on along the surviving one


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_after_any_history_of_resumes_staleness_is_the_distance_in_the_tree_of_steps(
    store: Store, resumes: list[int]
) -> None:
    """Model: a tree of steps, a resume moves the head back; staleness is the path length between version and head."""
    await store.database["policy_versions"].delete_many({})
    parent: dict[int, int] = {}  # node → parent; a node is a version
    step_of = {0: 0}
    head = (await store.versions.announce("main", 0, "p", {})).version
    step_of[head] = 0
    line = {0: head}  # step → node on the surviving history
    for back_to in resumes:
        for _ in range(2):
            new = await store.versions.announce("main", step_of[head] + 1, f"p{len(step_of)}", {})
            parent[new.version], step_of[new.version] = head, step_of[head] + 1
            head = new.version
            line[step_of[head]] = head
        target = min(back_to, step_of[head])
        await store.versions.withdraw_after("main", target, 1)
        head = line[target]

    def ancestors(node: int) -> list[int]:
        path = [node]
        while path[-1] in parent:
            path.append(parent[path[-1]])
        return path

    for found in await store.versions.all("main"):
        mine, heads = ancestors(found.version), ancestors(head)
        common = next(node for node in mine if node in heads)
        assert found.staleness(step_of[head]) == mine.index(common) + heads.index(common)
    newest = await store.versions.newest("main")
    assert newest is not None
    assert newest.version == head


async def test_version_zero_must_be_the_same_weights_for_every_service(store: Store) -> None:
    files = {"model.safetensors": FileEntry(sha256="a" * 64, bytes=3)}
    first = await store.versions.ensure_first("main", "/a", files)
    assert (await store.versions.ensure_first("main", "/b", files)).id == first.id
    other = {"model.safetensors": FileEntry(sha256="b" * 64, bytes=3)}
    with pytest.raises(DataError, match="checksums differ"):
        await store.versions.ensure_first("main", "/c", other)
