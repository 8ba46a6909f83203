"""Stale tokens: kept, masked, waited for or dropped, by the staleness of each token."""

import asyncio
import math

import pytest
import torch

from shared.documents import Claim
from shared.documents.packed import pack_floats, pack_ints
from shared.documents.run import Admission
from shared.documents.states import DataStatus
from shared.store import Store
from shared.tasks.admission import seq_limit
from shared.tokens.flatten import data_fields, flatten
from tests.shared.builders import claim, import_tasks, make_answer, make_data, make_task
from tests.trainer.streams import add_groups, publish, start, write
from trainer.data.stream import Batch
from trainer.losses import Denominators, LossBatch, LossConfig, LossName, compute
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.reporting.alarms import Alarms


def add_mixed_group(bridge: StoreBridge, seq: int, versions: list[list[int]]) -> None:
    """A group with a record for each entry of `versions`: its tokens were sampled by these."""
    task, group = make_task(seq), []
    for k, of_tokens in enumerate(versions):
        rid = f"{task.id}:{k}:1"
        runs = [(version, 1) for version in of_tokens]
        answer = make_answer(rid)
        assert answer.response is not None
        tokens = {"output_ids": pack_ints(range(3, 3 + len(runs))), "output_logprobs": pack_floats([-0.5] * len(runs))}
        response = answer.response.model_copy(update=tokens)
        answer = answer.model_copy(update={"weight_versions": runs, "response": response})
        bridge(bridge.store.records.open_dispatch(answer))
        fields = data_fields(flatten(rid, [answer], {answer.id: 1.0}))
        group.append(make_data(task, k, group_size=len(versions), **fields))
    bridge(bridge.store.data.write_group(group))


def entries(batch: Batch | None) -> list[float]:
    """The staleness of everything that has a loss."""
    assert batch is not None
    return [steps for m in batch.minibatches for row in m.rows for steps in row.staleness_E.tolist()]


@pytest.mark.parametrize(
    ("stale_data", "staleness", "oldest"),
    [("mask", [1.0] * 3, 1.0), ("keep", [4.0] + [1.0] * 3, 4.0), ("wait", [4.0] + [1.0] * 3, 4.0)],
)
def test_a_token_has_the_staleness_of_its_own_version_and_only_masking_takes_its_loss_never_its_place_in_denominators(
    bridge: StoreBridge, alone: Parallel, stale_data: str, staleness: list[float], oldest: float
) -> None:
    publish(bridge, range(5))
    add_mixed_group(bridge, 0, [[0, 3], [3, 3]])
    stream = start(bridge, alone, groups_per_step=1, max_staleness=2, stale_data=stale_data)
    batch = stream.next_batch(5)  # starts from the weights of step 4
    assert batch is not None
    (minibatch,) = batch.minibatches
    assert entries(batch) == staleness
    assert (minibatch.denominators.num_tokens, minibatch.denominators.num_trajectories) == (4, 2)
    assert minibatch.denominators.tokens_T.tolist() == [2, 2]
    assert batch.metrics["data/staleness_max"] == oldest
    assert batch.metrics["data/staleness_mean"] == sum(staleness) / len(staleness)
    assert (batch.metrics["data/tokens_with_loss"], batch.metrics["data/tokens_too_old"]) == (
        len(staleness),
        4 - len(staleness),
    )


def test_a_group_without_one_token_young_enough_is_set_aside_also_where_old_tokens_are_masked(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(5))
    add_mixed_group(bridge, 0, [[0, 1], [0, 0]])
    add_mixed_group(bridge, 1, [[0, 0], [3, 3]])
    batch = start(bridge, alone, groups_per_step=1, stale_data="mask").next_batch(5)
    assert entries(batch) == [1.0, 1.0]
    assert {d.task for d in bridge(bridge.store.data.find({"status": DataStatus.STALE}))} == {"main:train:0:t0"}


@pytest.mark.parametrize("stale_data", ["drop", "mask"])
def test_a_withdrawn_version_between_a_records_first_and_last_counts_and_one_that_sampled_nothing_does_not(
    bridge: StoreBridge, alone: Parallel, stale_data: str
) -> None:
    publish(bridge, range(6))
    bridge(
        bridge.store.versions.withdraw_after("main", 2, 1)
    )  # versions 3, 4, 5 are up to 3 steps of a dead branch away
    publish(bridge, range(3, 4))  # version 6
    add_mixed_group(bridge, 0, [[2, 5, 6]])
    add_mixed_group(bridge, 1, [[2, 6, 6]])
    stream = start(bridge, alone, groups_per_step=1, max_staleness=2, stale_data=stale_data)
    staleness = [1.0, 0.0, 0.0] if stale_data == "drop" else [1.0, 0.0]  # the first group trains without its old token
    assert entries(stream.next_batch(4)) == staleness
    set_aside = {d.task for d in bridge(bridge.store.data.find({"status": DataStatus.STALE}))}
    assert set_aside == ({"main:train:0:t0"} if stale_data == "drop" else set())


def test_without_staleness_every_step_trains_on_its_own_version_alone_and_on_all_that_it_sampled(
    bridge: StoreBridge, alone: Parallel
) -> None:
    """Synchronous training: samplers play everything that they may open; one group, the fourth, is not of the step's version."""
    publish(bridge, range(1))
    bridge(import_tasks(bridge.store, 20))
    with start(bridge, alone, max_staleness=0, stale_data="drop") as stream:
        playing = bridge.background(play_eagerly(bridge.store, late=3))
        taken = []
        for step in range(1, 5):
            batch = stream.next_batch(step)
            assert batch is not None
            assert set(entries(batch)) == {0.0}
            found = bridge(bridge.store.data.load(batch.record_ids))
            assert {tuple(d.versions) for d in found} == {(step - 1,)}
            taken.append(sorted({d.seq for d in found}))
            stream.commit(step)
            publish(bridge, range(step, step + 1))
        playing.cancel()
    assert taken == [[0, 1], [2, 4], [5, 6], [7, 8]]
    assert {d.seq for d in bridge(bridge.store.data.find({"status": DataStatus.STALE}))} == {3}


async def play_eagerly(store: Store, *, late: int) -> None:
    """A sampler on the newest weights that is never idle; the group `late` is of the weights before them."""
    admissions = {"main": Admission(groups_per_step=2, max_staleness=0)}
    while True:
        limit, _ = await seq_limit(store, ["main"], admissions)
        newest = await store.versions.newest("main")
        assert newest is not None
        while (held := await claim(store, seq_limit=limit)) is not None:
            version = max(0, newest.version - (held.task.seq == late))
            data = make_data(held.task, held.traj_id, version=version)
            await store.records.open_dispatch(make_answer(data.id, version=version))
            await store.data.write_group([data])
            if await store.tasks.finish_slot(held, 1.0):
                task = await store.tasks.claim_settlement("w", policy="main", lease_s=60)
                assert task is not None
                await store.tasks.finish_settlement(task, "ready", abandoned=False, data_of=["main"])
        await asyncio.sleep(0.01)


def test_by_default_nothing_is_set_aside_as_stale_and_the_oldest_group_is_trained(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(9))
    add_groups(bridge, range(1), version=0)
    add_groups(bridge, range(1, 2), version=8)
    batch = start(bridge, alone, groups_per_step=1).next_batch(9)
    assert set(entries(batch)) == {8.0}
    assert bridge(bridge.store.data.count_by_status()) == {DataStatus.READY: 4}


@pytest.mark.parametrize("stale_data", ["keep", "wait"])
def test_waiting_takes_no_group_before_an_older_one_that_is_still_played_and_every_one_of_them_in_the_end(
    bridge: StoreBridge, alone: Parallel, stale_data: str
) -> None:
    publish(bridge, range(1))
    bridge(import_tasks(bridge.store, 5, num_generations=1))
    with start(bridge, alone, groups_per_step=1, stale_data=stale_data) as stream:
        slow, quick, without_data = (bridge(claim(bridge.store)) for _ in range(3))
        bridge(end_group(bridge.store, quick))
        assert [g.task for g in stream._selector.candidates(1).fresh] == (
            [quick.task.id] if stale_data == "keep" else []
        )
        bridge(end_group(bridge.store, slow))
        taken = []
        for step in (1, 2):
            batch = stream.next_batch(step)
            assert batch is not None
            taken += batch.record_ids
            stream.commit(step)
            publish(bridge, range(step, step + 1))
        assert taken == [slow.record_id, quick.record_id]
        last = bridge(claim(bridge.store))
        bridge(end_group(bridge.store, last))
        waits = [group.task for group in stream._selector.candidates(3).fresh]
        bridge(end_group(bridge.store, without_data, outcome="abandoned"))  # an end without data delays no other
        assert waits == ([last.task.id] if stale_data == "keep" else [])
        assert [group.task for group in stream._selector.candidates(3).fresh] == [last.task.id]


async def end_group(store: Store, held: Claim, outcome: str = "ready") -> None:
    """What a sampler does when the group's only episode ends."""
    ready = outcome == "ready"
    if ready:
        data = make_data(held.task, held.traj_id, group_size=1)
        await store.records.open_dispatch(make_answer(data.id))
        await store.data.write_group([data])
    await store.tasks.finish_slot(held, 1.0)
    task = await store.tasks.claim_settlement("w", policy="main", lease_s=60.0)
    assert task is not None
    await store.tasks.finish_settlement(task, outcome, abandoned=not ready, data_of=["main"] if ready else [])


def test_where_groups_are_dropped_the_metrics_say_how_much_shorter_and_quicker_the_trained_episodes_are(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(5))
    slow, quick = make_task(0), make_task(1)
    write(bridge, [make_data(slow, k, version=0, duration_s=30.0) for k in range(2)], version=0)
    write(bridge, [make_data(quick, k, version=4, duration_s=10.0) for k in range(2)], version=4)
    batch = start(bridge, alone, groups_per_step=1, max_staleness=2, stale_data="drop").next_batch(5)
    assert batch is not None
    found = {name.removeprefix("selection/"): v for name, v in batch.metrics.items() if name.startswith("selection/")}
    assert found == {
        "set_aside_fraction": 0.5,
        "duration_all_s": 20.0,
        "duration_trained_s": 10.0,
        "duration_ratio": 0.5,
        "tokens_all": 2.0,
        "tokens_trained": 2.0,
        "tokens_ratio": 1.0,
    }
    alarms, _ = Alarms().check(batch.metrics)
    assert "selects_quick" in [alarm.rule.name for alarm in alarms]


def test_a_trajectorys_ratio_is_over_the_tokens_that_have_a_loss_and_its_weight_over_all() -> None:
    new_E, old_E = torch.tensor([-0.5, -1.0, -0.3], dtype=torch.float64), torch.tensor([-0.6, -0.7, -0.9]).double()
    advantage_E = torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    zeros = torch.zeros(3, dtype=torch.int64)
    batch = LossBatch(
        new_logprob_E=new_E,
        old_logprob_E=old_E,
        advantage_E=advantage_E,
        trajectory_E=torch.tensor([0, 0, 1]),
        turn_E=zeros,
        staleness_E=zeros,
        engine_E=zeros,
    )
    tokens_T, entries_T = torch.tensor([4, 1]), torch.tensor([2, 1])  # two of the first one's tokens have no loss
    config = LossConfig(loss=LossName.GSPO, epsilon=1.0, epsilon_higher=10.0)
    loss, _ = compute(batch, Denominators.count(tokens_T, entries_T), config)
    first, second = math.exp(((-0.5 + 0.6) + (-1.0 + 0.7)) / 2), math.exp(-0.3 + 0.9)
    assert float(loss) == pytest.approx(-2 * first / (2 * 4) + second / (2 * 1), rel=1e-6)
    with pytest.raises(ValueError, match="2 of its 4 trained tokens"):
        compute(batch, Denominators.count(tokens_T), config)
