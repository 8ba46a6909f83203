"""The end of the tasks: every wait for data says what it waits for, and ends."""

import time

import pytest

from shared.processes.waits import Activity, Wait
from shared.store.poll_timer import LONGEST_S
from tests.shared.builders import claim, import_tasks, let_time_pass, make_data, make_task
from tests.trainer.streams import publish, start, write
from trainer.data.stream import RecordStream
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge

NO_LIMIT = {"wait_for_tasks_s": 0.0}


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.supply.POLL_EVERY_S", 0.0)
    monkeypatch.setattr("trainer.data.stream.TELL_PEERS_EVERY_S", 0.3)


def play_and_settle(bridge: StoreBridge, count: int) -> None:
    """So many of the tasks, of two episodes each."""
    for _ in range(2 * count):
        bridge(bridge.store.tasks.finish_slot(bridge(claim(bridge.store)), 1.0))
    for _ in range(count):
        task = bridge(bridge.store.tasks.claim_settlement("w", policy="main", lease_s=60))
        assert task is not None
        write(bridge, [make_data(task, k) for k in range(2)])
        bridge(bridge.store.tasks.finish_settlement(task, "settled", abandoned=False, data_of=["main"]))


def waits(stream: RecordStream, step: int) -> str:
    assert not stream.wait(step)
    assert stream.waiting is not None
    return str(stream.waiting)


@pytest.mark.parametrize("drop_last", [False, True])
def test_when_the_tasks_are_used_up_the_last_step_takes_what_is_there_or_nothing_and_the_stream_ends(
    bridge: StoreBridge, alone: Parallel, drop_last: bool
) -> None:
    publish(bridge, range(3))
    bridge(import_tasks(bridge.store, 3))
    play_and_settle(bridge, 3)
    stream = start(bridge, alone, drop_last=drop_last, updates_per_step=2, **NO_LIMIT)
    taken: list[int] = []
    while (batch := stream.next_batch(len(taken) + 1)) is not None:
        taken.append(len(batch.record_ids))
        stream.commit(len(taken))
    assert taken == [4] if drop_last else taken == [4, 2]
    assert stream.used_up
    assert stream.end.startswith(f"the tasks are used up, all are played: {int(drop_last)} groups left of the 2")
    audit = bridge(bridge.store.data.find({}))
    assert [d.trained_count for d in audit] == ([1, 1, 1, 1, 0, 0] if drop_last else [1] * 6)


def test_a_step_is_waited_for_as_long_as_any_task_may_give_data_and_says_what_that_waits_for(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    stream = start(bridge, alone, **NO_LIMIT)
    assert waits(stream, 1).startswith("waits for 2 groups for step 1: 0 ready, no task is imported yet; until `tandem")
    bridge(import_tasks(bridge.store, 2))
    assert "0 ready, more tasks to open; until samplers have played them" in waits(stream, 1)
    play_and_settle(bridge, 1)
    held = bridge(claim(bridge.store))
    assert "1 ready, 1 being played, no task left to open" in waits(stream, 1)
    for _ in range(2):
        bridge(bridge.store.tasks.retry_slot(held, "AgentCrashed: exit 1", delay_s=1e6, max_failures=8))
        bridge(let_time_pass(bridge.store))
        held = bridge(claim(bridge.store))
    assert "1 failing (AgentCrashed: exit 1), no task left to open; until a retry succeeds, or they fail" in waits(
        stream, 1
    )
    bridge(bridge.store.tasks.retry_slot(held, "AgentCrashed: exit 1", delay_s=0, max_failures=1))
    bridge(bridge.store.tasks.retry_slot(bridge(claim(bridge.store)), "exit 1", delay_s=0, max_failures=1))
    assert "1 ready, 1 to be settled" in waits(stream, 1)
    task = bridge(bridge.store.tasks.claim_settlement("w", policy="main", lease_s=60))
    assert task is not None
    bridge(bridge.store.tasks.finish_settlement(task, "none can be trained on", abandoned=True))
    batch = stream.next_batch(1)
    assert batch is not None
    assert len(batch.record_ids) == 2


def test_more_tasks_within_the_time_to_wait_for_them_continue_the_run(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    bridge(import_tasks(bridge.store, 1))
    play_and_settle(bridge, 1)
    stream = start(bridge, alone, wait_for_tasks_s=600)
    assert "no task left to open; until more tasks are imported, or for 600 s (wait_for_tasks_s)" in waits(stream, 1)
    bridge(bridge.store.tasks.insert_new([make_task(1)]))
    play_and_settle(bridge, 1)
    batch = stream.next_batch(1)
    assert batch is not None
    assert len(batch.record_ids) == 4


@pytest.mark.parametrize(("limit_s", "pause_s"), [(4.0, 4.0), (600.0, 600.0), (None, LONGEST_S)])
def test_a_trainer_without_tasks_asks_again_when_its_patience_ends(
    bridge: StoreBridge, alone: Parallel, limit_s: float | None, pause_s: float
) -> None:
    bridge(import_tasks(bridge.store, 2))
    supply = start(bridge, alone, wait_for_tasks_s=limit_s)._supply
    assert not supply.is_used_up()
    assert supply.longest_pause_s == LONGEST_S, "signals announce all else"
    play_and_settle(bridge, 2)
    began = time.monotonic()
    assert not supply.is_used_up()
    least_s = pause_s if limit_s is None else pause_s - (time.monotonic() - began)
    assert least_s <= supply.longest_pause_s <= pause_s


def test_a_trainer_that_starts_while_held_out_tasks_are_played_waits_for_the_tasks_that_follow(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    bridge(import_tasks(bridge.store, 1))
    play_and_settle(bridge, 1)
    bridge(bridge.store.tasks.insert_new([make_task(0, split="eval")]))
    stream = start(bridge, alone, **NO_LIMIT)
    assert "1 ready, no task left to open" in waits(stream, 1)
    bridge(bridge.store.database["tasks"].update_one({"split": "eval"}, {"$set": {"status": "settled"}}))
    assert stream.wait(1)


def test_a_wait_counts_its_seconds_while_its_reason_changes_and_begins_anew_with_another_one() -> None:
    activity = Activity()
    activity.set(Wait("a step", "nothing is ready", "something is"))
    activity._since -= 252
    activity.set(Wait("a step", "one is ready", "another is"))
    assert str(activity) == "waits 4:12 for a step: one is ready; until another is"
    assert activity.waited_s == pytest.approx(252, abs=30)
    activity.set(Wait("another step", "nothing is ready", "something is"))
    assert activity.waited_s < 60
    activity.set("step 1")
    assert (str(activity), activity.waited_s) == ("step 1", 0.0)


def write_scored(bridge: StoreBridge, seqs: range, *, equal: bool) -> None:
    """Groups of two episodes whose advantages are all 0, or not."""
    for seq in seqs:
        write(bridge, [make_data(make_task(seq), k) for k in range(2)])
    if equal:
        zero = {"$set": {"dispatches.$[].advantage": 0.0}}
        bridge(bridge.store.database["record_data"].update_many({"seq": {"$in": list(seqs)}}, zero))


def fates(bridge: StoreBridge) -> list[tuple[int, str, str | None]]:
    found = {d.task: (d.seq, d.status.value, d.reason) for d in bridge(bridge.store.data.find({}))}
    return sorted(found.values())


def test_a_step_whose_groups_all_have_equal_rewards_is_not_taken_and_is_counted(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    write_scored(bridge, range(4), equal=True)
    write_scored(bridge, range(4, 6), equal=False)
    write_scored(bridge, range(6, 7), equal=True)
    stream = start(bridge, alone)
    batch = stream.next_batch(1)
    assert batch is not None
    stream.commit(1)
    assert {rid.split(":")[3] for rid in batch.record_ids} == {"t4", "t5"}
    assert batch.metrics["data/skipped_batches"] == 2
    assert [(seq, status) for seq, status, _ in fates(bridge)] == [
        *((seq, "dropped") for seq in range(4)),
        *((4, "trained"), (5, "trained"), (6, "ready")),
    ]
    assert fates(bridge)[0][2] == "equal rewards in every group of the step: no advantage, so no step"
    assert "1 ready, no task is imported yet; 2 steps skipped, of groups of equal rewards alone" in waits(stream, 2)


def test_where_other_terms_of_the_loss_have_a_gradient_equal_rewards_make_a_step(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    write_scored(bridge, range(2), equal=True)
    batch = start(bridge, alone, drop_zero_advantage=False).next_batch(1)
    assert batch is not None
    assert len(batch.record_ids) == 4


@pytest.mark.parametrize(
    ("most", "taken", "resampled"), [(0, {"t0", "t1"}, 0), (1, {"t1", "t2"}, 1), (9, {"t1", "t3"}, 2)]
)
def test_dynamic_sampling_replaces_groups_of_equal_rewards_up_to_its_bound(
    bridge: StoreBridge, alone: Parallel, most: int, taken: set[str], resampled: int
) -> None:
    publish(bridge, range(1))
    write_scored(bridge, range(4), equal=False)
    zero = {"$set": {"dispatches.$[].advantage": 0.0}}
    bridge(bridge.store.database["record_data"].update_many({"seq": {"$in": [0, 2]}}, zero))
    batch = start(bridge, alone, max_resampled_groups=most).next_batch(1)
    assert batch is not None
    assert {rid.split(":")[3] for rid in batch.record_ids} == taken
    assert batch.metrics["data/resampled_groups"] == resampled
    assert sum(status == "dropped" for _, status, _ in fates(bridge)) == resampled
