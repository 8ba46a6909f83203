"""Merged equals unmerged: the tree's loss and every parameter's gradient are those of one forward per sequence, in float64."""

import dataclasses
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from shared.trees import RecordTree
from tests.trainer import exactness_table, fsdp_child
from tests.trainer.builders import (
    RecordBuilder,
    gradients,
    logprobs_one_by_one,
    random_group,
    relative_difference,
    tiny_model,
)
from tests.trainer.conftest import Launch
from tests.trainer.formulas import reference_loss
from tests.trainer.loss_cases import LOSSES
from trainer.attention import dense_mask
from trainer.exact import exact_norms
from trainer.forward import TreeLM, loss_batch, row_logprobs
from trainer.losses import Denominators, LossConfig, LossName, compute
from trainer.packing import Row, empty_row, pack
from trainer.parallel import Parallel
from trainer.tree import TokenTree, merge

TOLERANCE = 1e-9
CONFIGS = {
    "minirl": LossConfig(importance_weight_cap_ratio=1.5),
    "grpo": LossConfig(loss_calculater=LossName.GRPO, out_of_date_decay=0.1),
    "cross-entropy": LossConfig(loss_calculater=LossName.CROSS_ENTROPY),
}
STALENESS = [0.0, 1.0, 2.0, 3.0, 4.0]
seeds = st.integers(0, 2**32 - 1)
every_loss = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


@pytest.fixture(scope="module")
def model() -> Iterator[PreTrainedModel]:
    torch.set_num_threads(1)
    made = tiny_model()
    with exact_norms(made):
        yield made


@pytest.fixture(scope="module")
def quick_cases() -> dict[str, LossConfig]:
    return {name: LOSSES[name] for name in exactness_table.QUICK}


@pytest.fixture(scope="module")
def wanted(quick_cases: dict[str, LossConfig]) -> dict[str, exactness_table.Step]:
    return exactness_table.expected(quick_cases)


def ages(records: Sequence[RecordTree]) -> list[float]:
    return STALENESS[: len(records)]


def one_by_one(
    model: PreTrainedModel, records: Sequence[RecordTree], config: LossConfig
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one forward per sequence, by the formulas; the token lists by record."""
    model.zero_grad()
    loss = reference_loss(logprobs_one_by_one(model, records), ages(records), config)
    if loss.requires_grad:
        loss.backward()
    return loss.item(), gradients(model)


def merged(
    model: PreTrainedModel, trees: Sequence[TokenTree], config: LossConfig, max_tokens: int = 10_000, chunk: int = 7
) -> tuple[float, dict[str, Tensor]]:
    """The same through the trainer's code; one backward per row."""
    model.zero_grad()
    denominators = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
    total = sum(backward(model, row, denominators, config, chunk) for row in pack(trees, max_tokens))
    return float(total), gradients(model)


def backward(model: PreTrainedModel, row: Row, denominators: Denominators, config: LossConfig, chunk: int = 7) -> float:
    logprob_E, _ = row_logprobs(TreeLM(model), row, chunk=chunk)
    loss, _ = compute(loss_batch(row, logprob_E), denominators, config)
    loss.backward()
    return loss.item()


def trained(records: Sequence[RecordTree]) -> bool:
    return any(record.trained_N.any() for record in records)


@every_loss
@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_the_merged_step_has_the_loss_and_gradients_of_one_forward_per_sequence(
    model: PreTrainedModel, config: LossConfig, seed: int
) -> None:
    records = random_group(seed)
    expected_loss, expected = one_by_one(model, records, config)
    loss, found = merged(model, [merge(records, staleness=ages(records))], config)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE, abs=1e-12)
    assert_same(found, expected)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if not any(gradient.any() for gradient in expected.values()):  # everything clipped, or nothing trained
        assert all(gradient.abs().max() < 1e-12 for gradient in found.values())
        return
    assert relative_difference(found, expected) < TOLERANCE


@every_loss
@settings(max_examples=6, deadline=None)
@given(seed=seeds, max_tokens=st.integers(1, 40))
def test_splitting_a_tree_does_not_change_the_gradient(
    model: PreTrainedModel, config: LossConfig, seed: int, max_tokens: int
) -> None:
    records = random_group(seed)
    tree = merge(records, staleness=ages(records))
    expected_loss, expected = merged(model, [tree], config)
    loss, found = merged(model, [tree], config, max_tokens=max_tokens, chunk=100)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE, abs=1e-12)
    assert_same(found, expected)


@every_loss
@settings(max_examples=6, deadline=None)
@given(seed=seeds)
def test_neither_packing_groups_together_nor_their_order_changes_the_gradient(
    model: PreTrainedModel, config: LossConfig, seed: int
) -> None:
    groups = [random_group(seed + i, num_records=3) for i in range(3)]
    trees = [merge(records, staleness=ages(records)) for records in groups]
    apart_loss, apart = merged(model, trees, config, max_tokens=30)
    together_loss, together = merged(model, trees, config)
    shuffled_loss, shuffled = merged(
        model, [merge(records[::-1], staleness=ages(records)[::-1]) for records in groups[::-1]], config
    )
    assert together_loss == pytest.approx(apart_loss, rel=TOLERANCE, abs=1e-12)
    assert shuffled_loss == pytest.approx(apart_loss, rel=TOLERANCE, abs=1e-12)
    assert_same(together, apart)
    assert_same(shuffled, apart)


def forking_records() -> list[RecordTree]:
    """Two records with one prompt and reply, then their own: every kind of sharing, and enough tokens to see an error."""
    records = []
    for name, reply, advantage in (("a", [1, 2, 0, 2], 1.3), ("b", [1, 2, 1, 1], -0.7)):
        builder = RecordBuilder(name)
        prompt = builder.context([7, 8, 9, 10])
        logprobs = [-3.6 - 0.3 * len(records) + 0.2 * i for i in range(4)]
        first = builder.reply(reply, prompt, logprobs=logprobs, advantage=advantage)
        builder.reply([2, 0, 1], builder.context([3, 4], first), logprobs=[-3.6] * 3, advantage=advantage)
        builder.reply([0, 0, 2], builder.context([4], prompt), logprobs=[-3.4] * 3, advantage=advantage)
        records.append(builder.build())
    return records


def test_every_loss_has_the_gradient_of_one_forward_per_sequence_merged_or_not_in_one_row_or_many(
    alone: Parallel, quick_cases: dict[str, LossConfig], wanted: dict[str, exactness_table.Step]
) -> None:
    table = exactness_table.differences(exactness_table.found(quick_cases, alone), wanted)
    assert {len(row) for row in table.values()} == {4}
    assert {case: max(row.values()) for case, row in table.items() if max(row.values()) > TOLERANCE} == {}


def test_two_processes_have_the_gradient_of_one_forward_per_sequence_for_every_loss(
    two_processes: Launch, wanted: dict[str, exactness_table.Step]
) -> None:
    found = torch.load(two_processes.out / "exactness.pt", weights_only=True)
    table = exactness_table.differences(found, wanted)
    assert {case: max(row.values()) for case, row in table.items() if max(row.values()) > TOLERANCE} == {}


def test_the_table_s_data_makes_every_loss_another_one() -> None:
    """A mask that takes nothing, or a clip that never acts, would be exact whatever it did."""
    losses = {case: loss for case, (loss, _) in exactness_table.expected(LOSSES).items()}
    twins = {(a, b) for a, b in itertools.combinations(losses, 2) if losses[a] == losses[b]}
    assert twins <= {("grpo, kl k3+", "grpo, kl k3"), ("gspo", "gspo_token")}


def test_a_duplicated_record_doubles_the_gradient(model: PreTrainedModel) -> None:
    (tree, double) = (merge(records) for records in (forking_records()[:1], forking_records()[:1] * 2))
    assert double.num_tree == tree.num_tree
    assert len(double.entries) == 2 * len(tree.entries)
    denominators = Denominators(num_tokens=1, num_trajectories=1, tokens_T=torch.ones(2))
    results = []
    for each in (tree, double):
        model.zero_grad()
        (row,) = pack([each], 1000)
        backward(model, row, denominators, CONFIGS["minirl"])
        results.append(gradients(model))
    assert relative_difference(results[1], {name: 2 * g for name, g in results[0].items()}) < TOLERANCE


def test_records_without_advantage_may_be_left_out_of_the_forward(model: PreTrainedModel) -> None:
    records = forking_records()
    idle = RecordBuilder("idle")
    idle.reply([0, 1, 2], idle.context([7, 8]), advantage=0.0)
    records.append(idle.build())
    for name in ("minirl", "grpo"):
        loss, everything = merged(model, [merge(records)], CONFIGS[name])
        dropped = merge(records, drop_zero_advantage=True)
        assert 2 not in dropped.entries.trajectory_E
        dropped_loss, found = merged(model, [dropped], CONFIGS[name])
        assert dropped_loss == pytest.approx(loss, rel=TOLERANCE)
        assert relative_difference(found, everything) < TOLERANCE


def test_an_untied_head_is_exact_too() -> None:
    untied = tiny_model(tied=False)
    with exact_norms(untied):
        records = forking_records()
        expected_loss, expected = one_by_one(untied, records, CONFIGS["grpo"])
        loss, found = merged(untied, [merge(records, staleness=ages(records))], CONFIGS["grpo"])
    assert "lm_head.weight" in expected
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
    assert relative_difference(found, expected) < TOLERANCE


def test_gradient_checkpointing_does_not_change_the_gradient() -> None:
    checkpointed = tiny_model()
    with exact_norms(checkpointed):
        tree = merge(forking_records())
        _, expected = merged(checkpointed, [tree], CONFIGS["minirl"])
        checkpointed.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        _, found = merged(checkpointed, [tree], CONFIGS["minirl"])
    assert relative_difference(found, expected) < TOLERANCE


def test_an_empty_row_runs_forward_and_backward_and_adds_nothing(model: PreTrainedModel) -> None:
    model.zero_grad()
    denominators = Denominators(num_tokens=5, num_trajectories=2, tokens_T=torch.tensor([3, 2]))
    for config in CONFIGS.values():
        assert backward(model, empty_row(), denominators, config) == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_padding_a_row_does_not_change_its_log_probs(model: PreTrainedModel) -> None:
    (row,) = pack([merge(forking_records())], 1000)
    plain_E, _ = row_logprobs(TreeLM(model), row)
    padded_E, _ = row_logprobs(TreeLM(model), row.padded(128))
    torch.testing.assert_close(padded_E, plain_E, rtol=1e-12, atol=1e-12)


def test_a_token_changes_its_descendants_and_nobody_else(model: PreTrainedModel) -> None:
    (row,) = pack([merge(forking_records())], 1000)
    changed_node = 4  # the first token of the shared reply
    ids_N = row.ids_N.clone()
    ids_N[changed_node] = 30
    with torch.no_grad():
        before_ND, after_ND = (
            model.base_model(
                input_ids=ids[None],
                position_ids=row.positions_N[None],
                attention_mask=dense_mask(row.ends_N),
                use_cache=False,
            ).last_hidden_state[0]
            for ids in (row.ids_N, ids_N)
        )
    changed_N = (before_ND != after_ND).any(1)
    index_N = torch.arange(row.num_tokens)
    assert torch.equal(changed_N, (index_N >= changed_node) & (index_N < row.ends_N[changed_node]))


def test_wrong_positions_a_plain_causal_mask_and_stock_norms_are_all_noticed(model: PreTrainedModel) -> None:
    """Negative controls: if these passed, the equalities above would prove nothing."""
    records = forking_records()
    _, expected = one_by_one(model, records, CONFIGS["minirl"])
    (row,) = pack([merge(records, staleness=ages(records))], 1000)
    n = row.num_tokens
    denominators = Denominators.count(torch.tensor([int(r.trained_N.sum()) for r in records]))
    broken = {
        "positions in the row": dataclasses.replace(row, positions_N=torch.arange(n)),
        "plain causal mask": dataclasses.replace(row, ends_N=torch.full((n,), n)),
        "predictor is the token before": dataclasses.replace(row, parents_N=torch.arange(-1, n - 1)),
    }
    for name, wrong in broken.items():
        model.zero_grad()
        backward(model, wrong, denominators, CONFIGS["minirl"])
        assert relative_difference(gradients(model), expected) > 1e-3, name
    stock = tiny_model()
    backward(stock, row, denominators, CONFIGS["minirl"])
    assert relative_difference(gradients(stock), expected) > TOLERANCE, "norms in float32"


def test_in_bfloat16_the_merged_forward_is_as_near_to_float64_as_one_forward_per_sequence(
    model: PreTrainedModel,
) -> None:
    groups = [random_group(seed) for seed in range(12)]
    low = tiny_model(dtype=torch.bfloat16)
    errors: dict[str, list[Tensor]] = {"merged": [], "one by one": []}
    with torch.no_grad():
        for records in groups:
            exact_E = torch.stack([t.new for tokens in logprobs_one_by_one(model, records) for t in tokens])
            alone_E = torch.stack([t.new.double() for tokens in logprobs_one_by_one(low, records) for t in tokens])
            (row,) = pack([merge(records)], 10_000)
            merged_E, _ = row_logprobs(TreeLM(low), row)
            errors["merged"].append(merged_E.double() - exact_E)
            errors["one by one"].append(alone_E - exact_E)
    merged, alone = (torch.cat(errors[name]).square().mean().sqrt() for name in ("merged", "one by one"))
    assert 1e-3 < merged < 1.5 * alone


def test_a_prefix_whose_keys_and_values_are_detached_has_another_gradient(model: PreTrainedModel) -> None:
    """Negative control: what a cache of a sampling engine would give; the shared prefix would not learn from its branches."""
    records = forking_records()[:1]
    leaf = records[0].leaves()[0]
    path = records[0].path(leaf)
    ids = torch.from_numpy(records[0].token_ids_N[path].astype("int64"))[None]
    cut = 5
    results = []
    for detached in (False, True):
        model.zero_grad()
        with torch.set_grad_enabled(not detached):
            prefix = model.base_model(input_ids=ids[:, :cut], past_key_values=DynamicCache(), use_cache=True)
        rest = model.base_model(input_ids=ids[:, cut:], past_key_values=prefix.past_key_values, use_cache=True)
        logits = model.get_output_embeddings()(rest.last_hidden_state[0, :-1])
        (-logits.log_softmax(-1).gather(1, ids[0, cut + 1 :, None]).sum()).backward()
        results.append(gradients(model))
    assert relative_difference(results[1], results[0]) > 1e-2


def test_clipping_the_sum_of_advantages_on_a_shared_token_is_another_loss(model: PreTrainedModel) -> None:
    """The tempting shortcut: one entry per node, with the summed advantage and the mean old log-prob."""
    records, config = forking_records(), LossConfig(loss_calculater=LossName.GRPO, skip_length_normalization=True)
    _, expected = one_by_one(model, records, config)
    (row,) = pack([merge(records, staleness=[0.0, 0.0])], 1000)
    count_U = torch.bincount(row.edge_E)
    zeros_U = torch.zeros(len(row.node_U))
    shortcut = dataclasses.replace(
        row,
        edge_E=torch.arange(len(row.node_U)),
        advantage_E=zeros_U.index_add(0, row.edge_E, row.advantage_E),
        old_logprob_E=zeros_U.index_add(0, row.edge_E, row.old_logprob_E) / count_U,
        trajectory_E=torch.zeros(len(row.node_U), dtype=torch.int64),
        turn_E=torch.zeros(len(row.node_U), dtype=torch.int64),
        staleness_E=zeros_U,
    )
    model.zero_grad()
    backward(model, shortcut, Denominators.count(torch.tensor([int(r.trained_N.sum()) for r in records])), config)
    assert relative_difference(gradients(model), expected) > 1e-2


def test_norms_are_restored_after_an_exact_run() -> None:
    made = tiny_model()
    with exact_norms(made):
        assert any("forward" in vars(module) for module in made.modules())
    assert not any("forward" in vars(module) for module in made.modules())


def test_a_model_whose_logits_are_not_one_product_is_refused() -> None:
    made = tiny_model()
    made.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        TreeLM(made)


def test_two_sharded_ranks_together_have_the_gradient_of_one_unsharded_process(tmp_path: Path) -> None:
    """fully_shard on gloo: tied and untied heads, the root freed between forward and backward, activations recomputed."""
    output = tmp_path / "gradients.pt"
    command = [sys.executable, "-m", "tests.trainer.fsdp_child"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store"), str(output)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    try:
        logs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(logs)
    assert_unsharded_gradients(torch.load(output))


def test_one_sharded_rank_has_the_gradient_of_an_unsharded_process() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        found = fsdp_child.every_case(rank=0, world_size=1)
    finally:
        torch.distributed.destroy_process_group()
    assert_unsharded_gradients(found)


def assert_unsharded_gradients(found: dict[str, dict[str, Tensor]]) -> None:
    for case, (tied, _, _) in fsdp_child.CASES.items():
        alone = tiny_model(tied=tied)
        with exact_norms(alone):
            _, expected = merged(alone, fsdp_child.step_trees(), LossConfig())
        assert relative_difference(found[case], expected) < TOLERANCE, case
