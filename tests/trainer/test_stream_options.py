"""Records that are used again, and advantages that are too small to train on."""

import pytest
import torch
from transformers import PreTrainedModel

from shared.documents import DBRecordData
from shared.documents.states import DataStatus
from shared.tokens.flatten import data_fields, flatten
from tests.shared.builders import make_answer, make_data, make_task
from tests.trainer.builders import RecordBuilder, gradients, relative_difference, tiny_model
from tests.trainer.streams import add_groups, publish, start
from trainer.losses import Denominators, LossBatch, LossConfig, LossName, compute
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.trees.packing import pack
from trainer.trees.tree import TokenTree, merge

# ---------------------------------------------------------------------- uses


def test_a_record_is_used_again_only_after_the_interval(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(4))
    add_groups(bridge, range(3))
    stream = start(bridge, alone, groups_per_step=1, max_trained_count=2, retrained_interval=3, max_staleness=9)
    taken = []
    for step in range(1, 7):
        batch = stream.next_batch(step)
        assert batch is not None
        taken.append({rid.split(":")[3] for rid in batch.record_ids})
        stream.commit(step)
        publish(bridge, range(step, step + 1))
    assert taken == [{"t0"}, {"t1"}, {"t2"}, {"t0"}, {"t1"}, {"t2"}]
    assert {tuple(d.trained_steps) for d in bridge(bridge.store.data.find({}))} == {(1, 4), (2, 5), (3, 6)}
    assert bridge(bridge.store.data.count_by_status()) == {DataStatus.TRAINED: 6}


def test_without_an_interval_the_oldest_record_is_used_again_at_once(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(3))
    add_groups(bridge, range(2))
    stream = start(bridge, alone, groups_per_step=1, max_trained_count=2, max_staleness=9)
    for step in (1, 2):
        batch = stream.next_batch(step)
        assert batch is not None
        assert {rid.split(":")[3] for rid in batch.record_ids} == {"t0"}
        stream.commit(step)


# ---------------------------------------------------------------------- advantages

ADVANTAGES = {"a": (0.5, -0.1), "b": (-0.05, 0.05), "c": (-0.7, 0.0)}


def make_records(zero_below: float = 0.0, zero_non_positive: bool = False) -> list:
    """Three records of two replies each; their advantages are set to 0 where a rule of these arguments says so."""
    records = []
    for name, advantages in ADVANTAGES.items():
        builder = RecordBuilder(name)
        last = builder.context([7, 8, 9])
        for turn, advantage in enumerate(advantages):
            kept = abs(advantage) >= zero_below and (advantage > 0 or not zero_non_positive)
            last = builder.reply([turn, ord(name) % 5], last, advantage=advantage if kept else 0.0)
            last = builder.context([10 + turn], last)
        records.append(builder.build())
    return records


def step(model: PreTrainedModel, tree: TokenTree, name: LossName) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    denominators = Denominators.count(torch.from_numpy(tree.trained_tokens_T), torch.from_numpy(tree.entries_T))
    config = LossConfig(loss=name, epsilon=1.0, epsilon_higher=1e9)  # nothing is clipped
    total = 0.0
    for row in pack([tree], 1000):
        logprob_E, entropy_E = row_logprobs(TreeLM(model), row)
        loss, _ = compute(LossBatch.of(row, logprob_E, entropy_E=entropy_E), denominators, config)
        loss.backward()
        total += float(loss.detach())
    return total, gradients(model)


@pytest.mark.parametrize("loss", [LossName.MINIRL, LossName.GRPO, LossName.CISPO])
@pytest.mark.parametrize(
    ("options", "zeroed"),
    [
        ({"minimal_advantage": 0.1}, {"zero_below": 0.1}),
        ({"skip_non_positive_advantage": True}, {"zero_non_positive": True}),
    ],
)
def test_advantages_that_are_left_out_give_the_gradient_of_advantages_0(
    loss: LossName, options: dict, zeroed: dict
) -> None:
    model = tiny_model()
    left_out, everything = merge(make_records(), **options), merge(make_records())
    assert left_out.num_tree < everything.num_tree  # record b is not forwarded
    assert left_out.trained_tokens_T.tolist() == everything.trained_tokens_T.tolist() == [4, 4, 4]
    found_loss, found = step(model, left_out, loss)
    expected_loss, expected = step(model, merge(make_records(**zeroed)), loss)
    _, other = step(model, everything, loss)
    assert found_loss == pytest.approx(expected_loss, rel=1e-9)
    assert relative_difference(found, expected) < 1e-9
    assert relative_difference(other, expected) > 1e-3, "without the option the gradient is another one"


def test_a_dispatch_of_too_small_an_advantage_has_no_entry_beside_one_that_has() -> None:
    tree = merge(make_records(), minimal_advantage=0.1)
    assert tree.entries_T.tolist() == [4, 0, 2]
    assert sorted(set(tree.entries.advantage_E.tolist())) == pytest.approx([-0.7, -0.1, 0.5])
    assert merge(make_records(), skip_non_positive_advantage=True).entries_T.tolist() == [2, 2, 0]


def test_the_stream_counts_what_has_too_small_an_advantage_and_does_not_forward_it(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(1))
    task = make_task(0)
    group: list[DBRecordData] = []
    for k, advantage in enumerate((0.04, -1.0)):
        answer = make_answer(rid := f"{task.id}:{k}:1")
        bridge(bridge.store.records.open_dispatch(answer))
        group.append(make_data(task, k, **data_fields(flatten(rid, [answer], {answer.id: advantage}))))
    bridge(bridge.store.data.write_group(group))
    batch = start(bridge, alone, groups_per_step=1, minimal_advantage=0.05).next_batch(1)
    assert batch is not None
    (minibatch,) = batch.minibatches
    assert (minibatch.denominators.num_tokens, minibatch.denominators.num_trajectories) == (4, 2)
    assert [a for row in minibatch.rows for a in row.advantage_E.tolist()] == [-1.0, -1.0]
