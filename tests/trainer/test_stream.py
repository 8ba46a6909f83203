"""The stream against a real database: whole groups, fresh ones, borrowed, committed, and one trainer at a time."""

import asyncio
import statistics
from collections.abc import Awaitable

import pytest
import torch

from shared.documents import DataClaim, Feedback
from shared.documents.states import DataStatus, RunState
from shared.errors import LeaseLost
from tests.shared.builders import claim, import_tasks, make_data, make_task
from tests.shared.episodes import play_and_wait
from tests.trainer.exactness import forking_records
from tests.trainer.streams import add_groups, make_config, publish, start, write
from trainer.data.groups import Candidates, Group, share_out
from trainer.data.reading import Share
from trainer.data.stream import RecordStream
from trainer.data.stream_metrics import batch_metrics
from trainer.losses import Denominators
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import merge


def test_a_step_takes_the_oldest_whole_groups_and_the_next_step_the_next(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(2))
    add_groups(bridge, range(4))
    stream = start(bridge, alone)
    for step, tasks in ((1, ["t0", "t1"]), (2, ["t2", "t3"])):
        batch = stream.next_batch(step)
        assert batch is not None
        assert sorted({rid.split(":")[3] for rid in batch.record_ids}) == tasks
        stream.commit(step)
    marks = {d.id: d.trained_steps for d in bridge(bridge.store.data.find({}))}
    assert sorted(marks.values()) == [[1]] * 4 + [[2]] * 4


def test_the_samplers_own_metrics_are_averaged_in_all_and_by_source(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    for seq, (source, lost) in enumerate((("maze", (1.0, 2.0)), ("field", (6.0, None)))):
        task = make_task(seq).model_copy(update={"source": source})
        metrics = [{} if value is None else {"lost": value} for value in lost]
        write(bridge, [make_data(task, k, metrics=metrics[k]) for k in range(2)])
    batch = start(bridge, alone).next_batch(1)
    assert batch is not None
    own = {key: value for key, value in batch.metrics.items() if key.startswith("metric")}
    assert own == {"metric/lost": 3.0, "metric_by_source/maze/lost": 1.5, "metric_by_source/field/lost": 6.0}


def test_denominators_count_every_trained_token_also_of_records_without_a_gradient(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    zero = [
        d.model_copy(update={"advantage": 0.0}).to_mongo() for d in bridge(bridge.store.data.find({}))[0].dispatches
    ]
    bridge(bridge.store.database["record_data"].update_one({"seq": 0}, {"$set": {"dispatches": zero}}))
    batch = start(bridge, alone).next_batch(1)
    assert batch is not None
    (minibatch,) = batch.minibatches
    assert (minibatch.denominators.num_tokens, minibatch.denominators.num_trajectories) == (8, 4)
    assert sum(row.num_entries for row in minibatch.rows) == 6


def test_advantages_are_normalized_over_the_whole_step_whatever_its_updates_and_nothing_is_written(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(3))
    data = bridge.store.database["record_data"]
    rewards = [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    for k, found in enumerate(bridge(bridge.store.data.find({}))):
        advantage = {"dispatches.0.advantage": rewards[k] - 0.5}
        bridge(data.update_one({"_id": found.id}, {"$set": {**advantage, "reward": rewards[k]}}))
    before = bridge(bridge.store.data.find({}))
    config = {"groups_per_step": 3, "updates_per_step": 3, "advantage_normalization": "batch_std"}
    batch = start(bridge, alone, **config).next_batch(1)
    assert batch is not None
    std = 0.3**0.5  # of three times 0 and three times 1, of a sample
    assert batch.metrics["advantage/batch_reward_std"] == pytest.approx(std)
    found = [a for m in batch.minibatches for row in m.rows for a in row.advantage_E.tolist()]
    assert sorted(set(found)) == pytest.approx([-0.5 / std, 0.5 / std], rel=1e-5)
    assert [d.dispatches for d in bridge(bridge.store.data.find({}))] == [d.dispatches for d in before]


def test_a_record_of_advantage_0_is_forwarded_where_its_source_has_another_mean(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(1))
    rid = bridge(bridge.store.data.find({}))[0].id
    data = bridge.store.database["record_data"]
    bridge(data.update_one({"_id": rid}, {"$set": {"dispatches.0.advantage": 0.0}}))
    batch = start(bridge, alone, groups_per_step=1, advantage_normalization="source").next_batch(1)
    assert batch is not None
    (row,) = batch.minibatches[0].rows
    assert sorted(set(row.advantage_E.tolist())) == pytest.approx([-1.0, 1.0], abs=1e-5)


def test_a_record_without_a_loss_makes_its_group_no_older_and_counts_in_no_denominator(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    task = make_task(0)
    masked = {"num_trained_tokens": 0, "min_version": -1, "max_version": -1}
    group = [make_data(task, 0), make_data(task, 1)]
    without_loss = [d.model_copy(update={"trained": False}) for d in group[1].dispatches]
    group[1] = group[1].model_copy(update={**masked, "dispatches": without_loss})
    write(bridge, group)
    batch = start(bridge, alone, groups_per_step=1).next_batch(1)
    assert batch is not None
    (minibatch,) = batch.minibatches
    assert (minibatch.denominators.num_tokens, minibatch.denominators.num_trajectories) == (2, 1)
    assert batch.metrics["data/staleness_max"] == 0.0


def test_a_step_of_several_updates_has_as_many_parts_of_whole_groups(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(3))
    batch = start(bridge, alone, groups_per_step=3, updates_per_step=2).next_batch(1)
    assert batch is not None
    assert [len(minibatch.sources_T) for minibatch in batch.minibatches] == [2, 4]
    assert [minibatch.denominators.num_trajectories for minibatch in batch.minibatches] == [2, 4]
    assert all(minibatch.rows for minibatch in batch.minibatches)
    assert len(batch.record_ids) == 6


def test_a_model_without_trees_gets_one_sequence_per_row(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    stream = start(bridge, alone)
    linear = RecordStream(bridge, make_config(), alone, trainer_generation=stream._trainer_generation, linear=True)
    batch = linear.next_batch(1)
    assert batch is not None
    rows = batch.minibatches[0].rows
    assert len(rows) == 4
    assert all((row.ends_N == row.num_tokens).all() for row in rows)


def test_groups_of_equal_rewards_are_counted_as_teaching_nothing(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    bridge(bridge.store.database["record_data"].update_many({"seq": 0}, {"$set": {"reward": 0.5}}))
    bridge(bridge.store.database["record_data"].update_one({"seq": 1}, {"$set": {"reward": 0.25}}))
    batch = start(bridge, alone).next_batch(1)
    assert batch is not None
    assert batch.metrics["data/effective_groups"] == 1.0
    assert batch.metrics["data/zero_variance_fraction"] == 0.5
    assert batch.metrics["reward/std"] > 0
    stored = bridge(bridge.store.database["record_data"].find({}, {"task": 1, "reward": 1}).to_list())
    means = [statistics.fmean(d["reward"] for d in stored if d["task"] == task) for task in {d["task"] for d in stored}]
    assert batch.metrics["reward/group_std"] == pytest.approx(statistics.stdev(means))


def test_groups_beyond_max_staleness_are_set_aside_with_their_reason_and_not_trained(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(5))
    add_groups(bridge, range(1), version=0)
    add_groups(bridge, range(1, 3), version=3)
    stream = start(bridge, alone, max_staleness=2, stale_data="drop")
    batch = stream.next_batch(5)  # starts from the weights of step 4
    assert batch is not None
    assert {rid.split(":")[3] for rid in batch.record_ids} == {"t1", "t2"}
    assert batch.metrics["data/staleness_max"] == 1.0
    assert batch.metrics["data/stale_groups"] == 1.0
    stale = bridge(bridge.store.data.find({"status": DataStatus.STALE}))
    assert {d.reason for d in stale} == {"4 steps behind step 5; at most 2"}


def test_of_the_weights_that_a_resume_withdrew_the_last_ones_are_the_oldest(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(4))
    bridge(bridge.store.versions.withdraw_after("main", 0, 1))  # versions 1, 2, 3 of a dead branch
    publish(bridge, range(1))
    mixed = make_task(0)
    write(bridge, [make_data(mixed, 0, version=1)], version=1)
    write(bridge, [make_data(mixed, 1, version=3)], version=3)
    add_groups(bridge, range(1, 2), version=1)
    add_groups(bridge, range(2, 3), version=4)
    batch = start(bridge, alone, max_staleness=2, stale_data="drop").next_batch(1)
    assert batch is not None
    assert {rid.split(":")[3] for rid in batch.record_ids} == {"t1", "t2"}
    stale = bridge(bridge.store.data.find({"status": DataStatus.STALE}))
    assert {(d.task, d.reason) for d in stale} == {(mixed.id, "3 steps behind step 1; at most 2")}


def test_the_older_of_two_trainers_of_a_policy_ends_instead_of_sharing_the_data(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    first = start(bridge, alone)
    start(bridge, alone)
    with pytest.raises(LeaseLost, match="another trainer has started"):
        first.next_batch(1)


def test_a_stop_that_was_asked_for_ends_the_wait_for_data(bridge: StoreBridge, alone: Parallel) -> None:
    stream = start(bridge, alone)
    stream.stopping = True
    assert stream.next_batch(1) is None


def test_what_somebody_else_has_borrowed_ends_the_step(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(1))
    stream = start(bridge, alone)
    (group,) = stream._selector.candidates(1).fresh
    bridge(bridge.store.data.claim(group.records[:1], DataClaim(trainer_generation=9, step=1)))
    with pytest.raises(LeaseLost, match="borrowed 1 of 2 records"):
        stream._selector.borrow([group], stream._trainer_generation, 1)


def test_waiting_for_tasks_that_are_still_played_means_those_of_the_same_order(
    bridge: StoreBridge, alone: Parallel
) -> None:
    """Two policies own tasks: each has an order of its own."""
    publish(bridge, range(1))
    bridge(import_tasks(bridge.store, 1, policy="guide"))
    add_groups(bridge, range(1, 2))
    stream = start(bridge, alone, groups_per_step=1, stale_data="wait")
    assert [group.task for group in stream._selector.candidates(1).fresh] == ["main:train:0:t1"]
    bridge(import_tasks(bridge.store, 1))
    assert stream._selector.candidates(1).fresh == []


def test_the_tokens_of_every_way_of_merging_are_counted_and_what_cutting_adds(alone: Parallel) -> None:
    """Each of two records: 4 of a prompt, 4 replied, 5 more; and 4 others after the prompt. Cut in rows of 13, 13 and 8."""
    tree = merge(forking_records())
    rows, task = pack([tree], 13), make_task(0)
    counts = Denominators.count(torch.from_numpy(tree.trained_tokens_T))
    data = [make_data(task, k) for k in range(2)]
    metrics = batch_metrics([Share(Minibatch(rows, counts), [tree], data, 0)], alone.data, prefetched=0)
    found = {
        name: metrics[f"data/{name}"] for name in ("tokens_flat", "tokens_linear", "tokens_tree", "tokens_computed")
    }
    assert found == {"tokens_flat": 58, "tokens_linear": 42, "tokens_tree": 24, "tokens_computed": 34}
    assert metrics["data/merge_ratio"] == pytest.approx(58 / 24)
    assert metrics["data/split_overhead"] == pytest.approx(34 / 24 - 1)


def test_groups_are_shared_out_whole_and_by_their_cost() -> None:
    groups = [Group(f"t{i}", (f"r{i}",), tokens) for i, tokens in enumerate([100, 10, 10, 10, 40, 30])]
    shares = share_out(groups, 2)
    assert sorted(g.task for share in shares for g in share) == [f"t{i}" for i in range(6)]
    assert [sum(g.num_tokens for g in share) for share in shares] == [100, 100]


def test_long_sequences_weigh_more_than_as_many_tokens_of_short_ones() -> None:
    """100,000 tokens that see 50,000 on average cost three times as much as those that see few: one rank has them alone."""
    long = Group("long", ("a",), 100_000)
    short = [Group(f"short-{i}", tuple(f"{i}-{j}" for j in range(100)), 100_000) for i in range(3)]
    assert share_out([long, *short], 2) == [[long], short]


def paused_stream(bridge: StoreBridge, alone: Parallel) -> RecordStream:
    """The stream of a paused run, in which two groups are ready."""
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    stream = start(bridge, alone)
    bridge(bridge.store.runs.set_state(RunState.PAUSED))
    assert not stream.wait(1)
    return stream


def test_while_the_run_is_paused_no_step_takes_data_and_the_others_hear_of_it_at_once(
    bridge: StoreBridge, alone: Parallel
) -> None:
    stream = paused_stream(bridge, alone)
    assert stream.paused
    bridge.background(later(bridge.store.runs.set_state(RunState.RUNNING)))
    assert not stream.wait(1), "it tells of the end of the pause before it takes anything"
    assert not stream.paused
    assert stream.wait(1)
    batch = stream.next_batch(1)
    assert batch is not None
    assert len(batch.record_ids) == 4


def test_a_paused_trainer_asks_for_nothing_but_the_pause(
    bridge: StoreBridge, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = paused_stream(bridge, alone)
    steps: list[int] = []
    monkeypatch.setattr(stream._selector, "candidates", steps.append)
    bridge.background(later(bridge.store.runs.set_state(RunState.RUNNING)))
    assert not stream.wait(1), "the pause ends"
    assert steps == []


async def later(work: Awaitable[object]) -> None:
    await asyncio.sleep(0.3)
    await work


def test_a_pause_that_comes_while_a_step_looks_for_its_data_holds_that_step(
    bridge: StoreBridge, alone: Parallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(2))
    stream = start(bridge, alone)
    look = stream._selector.candidates

    def pause_meanwhile(step: int) -> Candidates:
        found = look(step)
        bridge(bridge.store.runs.set_state(RunState.PAUSED))
        return found

    monkeypatch.setattr(stream._selector, "candidates", pause_meanwhile)
    assert not stream.wait(1)
    assert stream.paused
    assert stream.waiting is not None, "the heartbeat says for what it waits"
    assert "paused" in stream.waiting.why
    assert [d.claim for d in bridge(bridge.store.data.find({}))] == [None] * 4
    monkeypatch.undo()
    bridge(bridge.store.runs.set_state(RunState.RUNNING))
    batch = stream.next_batch(1)
    assert batch is not None
    assert len(batch.record_ids) == 4


def test_a_trainer_that_waits_for_data_says_how_many_groups_wait_for_feedback(
    bridge: StoreBridge, alone: Parallel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(bridge, range(1))
    bridge(import_tasks(bridge.store, 2, num_generations=1))
    record = bridge(play_and_wait(bridge.store, bridge(claim(bridge.store))))
    stream = start(bridge, alone)
    monkeypatch.setattr("trainer.data.stream.TELL_PEERS_EVERY_S", 0.2)
    with caplog.at_level("INFO"):
        assert not stream.wait(1)
    assert "step=1 waits: 0 ready, 1 waiting for feedback, more tasks to open" in caplog.text
    bridge(bridge.store.feedback.give(record, Feedback(score=1.0)))
    monkeypatch.setattr("trainer.data.supply.POLL_EVERY_S", 0.0)
    assert not stream.wait(1)
    assert stream.waiting is not None
    assert stream.waiting.why == "0 ready, 1 to be settled, more tasks to open"
