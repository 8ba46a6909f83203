"""Router replay: the tokens get the experts that their engine chose, and nothing else of the gradient changes."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedModel

from shared.errors import ConfigError, DataError
from tests.trainer.builders import (
    STALENESS,
    VOCABULARY,
    gradients,
    logprobs_one_by_one,
    random_group,
    relative_difference,
    tiny_experts_model,
    tiny_model,
)
from tests.trainer.exactness import TOLERANCE
from tests.trainer.formulas import reference_loss
from tests.trainer.launched import OPTIMIZER, accumulated
from tests.trainer.replayed import LAYERS, NUM_EXPERTS, TOP_K, expected_choices, replay_one_by_one, replayed_group
from tests.trainer.tiny_models import tiny
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.forward import TreeLM, forward_row
from trainer.modeling.router_replay import RouterReplay
from trainer.process.parallel import Parallel
from trainer.settings.memory import MemorySettings
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.experts import RouterShape, RowExperts, check_routed
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, merge

GROUPS = [replayed_group(seed) for seed in (2, 3, 5)]
CHECKPOINTED = MemorySettings(activation_checkpointing=True)
WAYS = {  # of computing the same update: merging, tokens a row, one sequence a row
    "one row": (Merging.TREE, 10_000, False),
    "cut trees": (Merging.TREE, 9, False),
    "linear": (Merging.LINEAR, 40, False),
    "unmerged": (Merging.NONE, 25, False),
    "sequence by sequence": (Merging.LINEAR, 10_000, True),
}


def rows_of(way: str) -> tuple[list[Row], Denominators]:
    merging, max_tokens, one_sequence = WAYS[way]
    trees = [merge(records, merging=merging, experts=arrays).at(STALENESS) for records, arrays in GROUPS]
    counts = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
    return pack(trees, max_tokens, one_sequence_per_row=one_sequence), counts


def expected_update(config: LossConfig, *, replayed: bool = True) -> tuple[float, dict[str, Tensor]]:
    """A forward per sequence, and loops over tokens."""
    tokens, grads = [], {}
    model = tiny_experts_model()
    with exact_norms(model):
        for records, arrays in GROUPS:
            replay_one_by_one(model, expected_choices(records, arrays) if replayed else {})
            tokens += logprobs_one_by_one(model, records)
        loss = reference_loss(tokens, config)
        loss.backward()
        grads = gradients(model)
    return loss.item(), grads


@pytest.mark.parametrize(
    ("loss", "memory"),
    [(LossName.MINIRL, MemorySettings()), (LossName.GSPO, MemorySettings()), (LossName.MINIRL, CHECKPOINTED)],
)
def test_replayed_experts_give_the_gradient_of_the_formula_whatever_merging_rows_and_passes(
    loss: LossName, memory: MemorySettings, tmp_path: Path, alone: Parallel
) -> None:
    config = LossConfig(loss=loss)
    expected_loss, expected = expected_update(config)
    tiny_experts_model().save_pretrained(tmp_path)
    options = LearnerOptions(dtype="float64", attn_implementation="sdpa", memory=memory)
    learner = open_learner(tmp_path, config, OPTIMIZER, alone, options)
    replay = replay_of(learner)
    fractions = []
    for way in WAYS:
        rows, counts = rows_of(way)
        replay.restart()
        with exact_norms(learner.causal_lm):
            done = accumulated(learner, Minibatch(rows, counts))
        assert done.measured.sums["loss/loss"] == pytest.approx(expected_loss, rel=1e-9), way
        assert relative_difference(taken_gradients(learner), expected) < TOLERANCE, way
        fractions.append(replay.counts)
    assert 0 < fractions[0][1] < fractions[0][0], "some tokens are replayed, and some are not"
    assert fractions[0][3] > 0, "their routers would have chosen others"
    assert relative_difference(expected, expected_update(config, replayed=False)[1]) > 1e-3


def taken_gradients(learner: Learner) -> dict[str, Tensor]:
    grads = {name: p.grad.clone() for name, p in learner.causal_lm.named_parameters() if p.grad is not None}
    learner.causal_lm.zero_grad()
    return grads


def replay_of(learner: Learner) -> RouterReplay:
    replay = learner._accumulator.lm.replay
    assert replay is not None
    return replay


def own_choices(lm: TreeLM, row: Row) -> Tensor:
    """[tokens, choices in the layers with experts], as the model itself chooses."""
    assert lm.replay is not None
    chosen: list[Tensor] = []
    hooks = [
        router.register_forward_hook(lambda _, args, out: chosen.append(out[2])) for _, router in lm.replay._routers
    ]
    with torch.no_grad():
        forward_row(lm, row)
    for hook in hooks:
        hook.remove()
    return torch.cat(chosen, 1)


def of_a_row(row: Row, experts: Tensor, given: Tensor | None = None) -> Row:
    given_N = torch.ones(len(experts), dtype=torch.bool) if given is None else given
    return dataclasses.replace(row, experts=RowExperts(experts.to(torch.uint8), given_N))


def deepseek_model() -> PreTrainedModel:
    """Its routers choose among groups of experts first, by biased sigmoids, and do not normalize by a softmax."""
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=2,
        first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        n_shared_experts=1, attn_implementation="sdpa", experts_implementation="batched_mm",
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


@pytest.mark.parametrize("model", [tiny_experts_model(), deepseek_model()], ids=["softmax", "sigmoid, in groups"])
def test_where_the_engine_chose_as_the_model_does_nothing_changes_bit_for_bit(model: PreTrainedModel) -> None:
    lm = TreeLM(model)
    (row,) = pack([merge(random_group(2))], 1000)
    alone = forward_row(lm, row).logprob_E
    own = own_choices(lm, row)
    assert torch.equal(forward_row(lm, of_a_row(row, own)).logprob_E, alone)
    assert lm.replay is not None
    assert lm.replay.counts[3] == 0
    others = forward_row(lm, of_a_row(row, (own + 1) % NUM_EXPERTS)).logprob_E
    assert not torch.equal(others, alone)
    assert lm.replay.counts[3] > 0
    assert torch.equal(forward_row(lm, row).logprob_E, alone), "a row without experts, after one that has some"


def test_other_tokens_than_those_with_experts_keep_the_choice_of_their_router() -> None:
    lm = TreeLM(tiny_experts_model())
    (row,) = pack([merge(random_group(2))], 1000)
    none = torch.zeros(row.num_tokens, dtype=torch.bool)
    alone = forward_row(lm, row).logprob_E
    others = (own_choices(lm, row) + 1) % NUM_EXPERTS
    assert torch.equal(forward_row(lm, of_a_row(row, others, none)).logprob_E, alone)


def test_layers_without_experts_are_skipped_in_arrays_of_all_layers() -> None:
    lm = TreeLM(tiny_experts_model())
    (row,) = pack([merge(random_group(2))], 1000)
    others = (own_choices(lm, row) + 1) % NUM_EXPERTS
    all_layers = torch.cat([torch.zeros_like(others[:, :TOP_K]), others], 1)
    found = forward_row(lm, of_a_row(row, all_layers)).logprob_E
    assert torch.equal(found, forward_row(lm, of_a_row(row, others)).logprob_E)


def test_what_a_replayed_token_got_counts_in_the_balance_of_the_experts() -> None:
    lm = TreeLM(tiny_experts_model())
    (row,) = pack([merge(random_group(2))], 1000)
    first_two = torch.arange(TOP_K).repeat(LAYERS - 1).expand(row.num_tokens, -1)
    routing = forward_row(lm, of_a_row(row, first_two)).routing
    assert routing is not None
    assert routing.chosen_LX.tolist() == [[float(routing.tokens), float(routing.tokens), 0.0, 0.0]] * 2


def test_the_reference_model_chooses_by_itself(tmp_path: Path, alone: Parallel) -> None:
    tiny_experts_model().save_pretrained(tmp_path)
    config = LossConfig(kl_coefficient=0.1)
    learner = open_learner(
        tmp_path, config, OPTIMIZER, alone, LearnerOptions(dtype="float64", attn_implementation="sdpa")
    )
    (row, *_), _ = rows_of("one row")
    assert learner.reference is not None
    (found,) = learner.reference.logprobs([row])
    with torch.no_grad():
        expected = forward_row(learner._accumulator.lm, row.without_experts()).logprob_E
        replayed = forward_row(learner._accumulator.lm, row).logprob_E
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(replayed, expected, atol=1e-3)


def test_a_dense_model_with_routed_experts_is_refused() -> None:
    (row, *_), _ = rows_of("one row")
    with pytest.raises(ConfigError, match="a model of type qwen3 has no routers that can repeat them"):
        forward_row(TreeLM(tiny_model()), row)


def test_a_model_with_several_kinds_of_routers_has_none_that_can_repeat_them() -> None:
    """JetMoE chooses experts of its attention too."""
    assert TreeLM(tiny("jetmoe")).replay is None


def test_a_router_that_chooses_otherwise_than_by_one_topk_is_refused() -> None:
    model = tiny_experts_model()
    for block in model.model.layers[1:]:
        block.mlp.gate.top_k = 3
    lm = TreeLM(model)
    (row,) = pack([merge(random_group(2))], 1000)
    with pytest.raises(ConfigError, match="its routers do not choose 2 experts by one topk over them"):
        forward_row(lm, of_a_row(row, torch.zeros(row.num_tokens, (LAYERS - 1) * TOP_K)))


def test_experts_that_are_not_the_models_are_refused_with_the_record() -> None:
    shape = RouterShape(LAYERS, LAYERS - 1, TOP_K, NUM_EXPERTS)
    arrays = list(GROUPS[0][1].values())
    check_routed("r1", arrays, shape)
    with pytest.raises(DataError, match="record r1: routed expert 3; expected 0 to 2"):
        check_routed("r1", arrays, shape._replace(num_experts=3))
    with pytest.raises(DataError, match="record r1: 6 routed experts of a token; expected 4 or 10, 2 of each"):
        check_routed("r1", arrays, shape._replace(layers=5))


def test_a_groups_records_with_other_numbers_of_choices_are_refused() -> None:
    records, arrays = GROUPS[0]
    spans = [
        dataclasses.replace(span, stored=span.stored.model_copy(update={"choices": 2})) for span in records[0].experts
    ]
    of_one_layer = {span.stored.sha256: arrays[span.stored.sha256][:, :2] for span in spans}
    with pytest.raises(DataError, match=r"the tokens of its group have \[2, 6\] routed experts"):
        merge([dataclasses.replace(records[0], experts=tuple(spans)), *records[1:]], experts=arrays | of_one_layer)
