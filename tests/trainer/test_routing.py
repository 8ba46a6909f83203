"""Experts: the loss that balances them is its formula over every token of the records, however these are computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from shared.errors import ConfigError
from shared.tokens.record_tree import RecordTree
from tests.trainer.builders import (
    STALENESS,
    gradients,
    logprobs_one_by_one,
    random_group,
    relative_difference,
    tiny_experts_model,
    whole,
)
from tests.trainer.exactness import TOLERANCE
from tests.trainer.formulas import reference_loss
from tests.trainer.launched import OPTIMIZER, accumulated, exact_learner, full_parameters, take_steps
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.routing import load_metrics, router_aux_loss, routing_of
from trainer.process.parallel import Parallel
from trainer.publishing.weights import write_weights
from trainer.settings.config import TrainerConfig
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import Trainable
from trainer.step.learner import Learner
from trainer.step.opening import LearnerOptions, open_learner
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row, pack
from trainer.trees.tree import Merging, merge

COEFFICIENT = 0.3
GROUPS = [random_group(seed) for seed in (2, 3)]
CHECKPOINTED = MemorySettings(activation_checkpointing=True)
WAYS = {  # of computing the same update: merging, tokens a row, one sequence a row
    "one row": (Merging.TREE, 10_000, False),
    "cut trees": (Merging.TREE, 9, False),
    "linear": (Merging.LINEAR, 40, False),
    "unmerged": (Merging.NONE, 25, False),
    "sequence by sequence": (Merging.LINEAR, 10_000, True),
}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("experts") / "tiny"
    tiny_experts_model().save_pretrained(directory)
    return directory


def expected_update(config: LossConfig) -> tuple[float, float, dict[str, Tensor]]:
    """(the loss without the balance, the balance, gradients of both): a forward per sequence, and loops over tokens."""
    model = tiny_experts_model()
    with exact_norms(model):
        tokens = [of for records in GROUPS for of in logprobs_one_by_one(model, records)]
        loss = reference_loss(tokens, config)
        routed = [token for records in GROUPS for record in records for token in router_logits(model, record)]
        balance = COEFFICIENT * expected_balance(routed)
        (loss + balance).backward()
    return loss.item(), balance.item(), gradients(model)


def router_logits(model: PreTrainedModel, record: RecordTree) -> Iterator[list[Tensor]]:
    """Of each token of the record, in each layer, by the first sequence that has it."""
    seen = set()
    for leaf in record.leaves():
        path = record.path(leaf)
        ids = torch.from_numpy(record.token_ids_N[path]).long()
        layers = model.model(input_ids=ids[None], use_cache=False, output_router_logits=True).router_logits
        for place, token in enumerate(path.tolist()):
            if token not in seen:
                seen.add(token)
                yield [layer[place] for layer in layers]


def expected_balance(routed: list[list[Tensor]]) -> Tensor:
    """Mean over layers of E · Σ_e f_e · P_e, of two experts a token."""
    losses = []
    for layer in zip(*routed, strict=True):
        probabilities = [logits.softmax(-1) for logits in layer]
        num = len(layer[0])
        f = [sum(e in p.topk(2).indices.tolist() for p in probabilities) / len(layer) for e in range(num)]
        mean = sum(probabilities) / len(layer)
        losses.append(num * sum(f[e] * mean[e] for e in range(num)))
    return sum(losses) / len(losses)


def rows_of(way: str) -> tuple[list[Row], Denominators]:
    merging, max_tokens, one_sequence = WAYS[way]
    trees = [merge(records, merging=merging).at(STALENESS) for records in GROUPS]
    counts = Denominators.count(torch.cat([torch.from_numpy(tree.trained_tokens_T) for tree in trees]))
    return pack(trees, max_tokens, one_sequence_per_row=one_sequence, every_token=True), counts


@pytest.mark.parametrize(
    ("loss", "passes", "memory"),
    [(LossName.MINIRL, 1, MemorySettings()), (LossName.GSPO, 2, MemorySettings()), (LossName.MINIRL, 1, CHECKPOINTED)],
)
def test_the_balance_is_its_formula_whatever_merging_rows_and_passes(
    loss: LossName, passes: int, memory: MemorySettings, experts: Path, alone: Parallel
) -> None:
    config = LossConfig(loss=loss, router_aux_loss_coef=COEFFICIENT)
    policy, balance, expected = expected_update(config)
    learner = open_learner(
        experts, config, OPTIMIZER, alone, LearnerOptions(dtype="float64", attn_implementation="sdpa", memory=memory)
    )
    for way in WAYS:
        rows, counts = rows_of(way)
        with exact_norms(learner.causal_lm):
            done = accumulated(learner, Minibatch(rows, counts))
        assert done.routing is not None
        assert done.count == passes or way != "cut trees", "trajectories over several rows"
        assert done.measured.sums["loss/loss"] == pytest.approx(policy, rel=1e-9), way
        assert float(router_aux_loss(done.routing, done.routing, COEFFICIENT)) == pytest.approx(balance, rel=1e-9), way
        assert relative_difference(taken_gradients(learner), expected) < TOLERANCE, way


def taken_gradients(learner: Learner) -> dict[str, Tensor]:
    found = {}
    for name, parameter in learner.causal_lm.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        found[name] = whole(parameter.grad).clone()
    learner.lm.zero_grad()
    return found


def test_only_rows_behind_the_first_are_forwarded_twice_and_only_for_a_balance(experts: Path, alone: Parallel) -> None:
    for coefficient, extra in ((0.0, 0), (COEFFICIENT, 1)):
        learner = exact_learner(experts, alone, LossConfig(router_aux_loss_coef=coefficient))
        entries: list[int] = []
        learner.lm.register_forward_pre_hook(lambda _, args, seen=entries: seen.append(args[0].num_entries))
        for way in ("one row", "cut trees"):
            rows, counts = rows_of(way)
            entries.clear()
            learner.step(rows, counts)
            assert len(entries) == len(rows) + extra * (len(rows) - 1), way
            assert entries.count(0) >= extra * (len(rows) - 1), "without the head"


def test_a_layer_s_balance_is_that_of_transformers() -> None:
    """Of one layer, since transformers takes the tokens of all layers together; padding counts for neither."""
    logits = tuple(torch.randn(40, 6, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    held = torch.arange(40) < 33
    routing = routing_of(logits, held.long(), 2)
    assert routing is not None
    of_layers = [load_balancing_loss_func((layer,), 6, 2, held[None]) for layer in logits]
    assert float(router_aux_loss(routing, routing, 0.5)) == pytest.approx(float(0.5 * sum(of_layers) / 2), rel=1e-5)


def test_every_token_of_every_record_counts_once_whatever_merging_and_budget() -> None:
    for seed in range(12):
        records = random_group(seed)
        for merging in Merging:
            tree = merge(records, merging=merging)
            assert tree.copies_N.sum() == sum(record.num_tokens for record in records)
            for budget in (4, 11, 1000):
                rows = pack([tree], budget, every_token=True)
                assert sum(int(row.padded(16).copies_N.sum()) for row in rows) == tree.copies_N.sum()


def test_the_load_shows_a_collapse_and_an_even_share() -> None:
    even = torch.eye(4)[torch.arange(8) % 4] + torch.eye(4)[(torch.arange(8) + 1) % 4]
    collapsed = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(8, 4)
    routing = routing_of([even, collapsed], torch.ones(8), 2)
    assert routing is not None
    found = load_metrics(routing)
    assert found == {
        "experts/load_imbalance_mean": 1.5,
        "experts/load_imbalance_max": 2.0,
        "experts/unused_fraction": 0.25,
    }


def test_the_balance_evens_out_what_the_policy_does_not_care_for(experts: Path, alone: Parallel) -> None:
    first, last = {}, {}
    for coefficient in (0.0, 3.0):
        learner = exact_learner(experts, alone, LossConfig(router_aux_loss_coef=coefficient))
        rows, counts = rows_of("one row")
        metrics = [learner.step(rows, counts).metrics for _ in range(6)]
        first[coefficient], last[coefficient] = (m["experts/load_imbalance_mean"] for m in (metrics[0], metrics[-1]))
        assert ("loss/router_aux_loss" in metrics[0]) is (coefficient > 0)
    assert first[0.0] == first[3.0]
    assert last[3.0] < 0.9 * min(first[3.0], last[0.0])


@pytest.mark.parametrize(
    "trainable",
    [Trainable(freeze=["*.mlp.gate.weight"]), Trainable(lora_rank=2, lora_target_modules=["q_proj", "v_proj"])],
    ids=["frozen router", "adapters of the attention"],
)
def test_what_is_frozen_stays_and_the_rest_moves_also_by_the_balance(
    trainable: Trainable, experts: Path, alone: Parallel
) -> None:
    learner = exact_learner(experts, alone, LossConfig(router_aux_loss_coef=COEFFICIENT), trainable)
    before = full_parameters(learner)
    metrics = take_steps(learner, 2, 30, alone, every_token=True)
    moved = {name for name, tensor in full_parameters(learner).items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name, p in learner.causal_lm.named_parameters() if p.requires_grad}
    assert not any(name.endswith("mlp.gate.weight") for name in moved)
    assert metrics["loss/router_aux_loss"] > 0


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_experts_are_written_under_the_names_they_were_read_by(
    lora_rank: int, experts: Path, tmp_path: Path, alone: Parallel
) -> None:
    """In memory all experts of a layer are one tensor; an engine compares names before it loads."""
    learner = exact_learner(experts, alone, trainable=Trainable(lora_rank=lora_rank))
    take_steps(learner, 1, 30, alone)
    written = write_weights(learner.causal_lm, experts, tmp_path / "written", alone)
    shapes = []
    for directory in (experts, written.path):
        with safe_open(directory / "model.safetensors", framework="pt") as file:
            shapes.append({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    assert shapes[0] == shapes[1]
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in shapes[1]
    loaded = AutoModelForCausalLM.from_pretrained(written.path, dtype=torch.float64).state_dict()
    for name, tensor in full_parameters(learner).items():
        if lora_rank == 0 or ".experts." in name:
            assert torch.equal(loaded[name], tensor), name


def test_a_balance_of_no_experts_is_refused(model_directory: Path, alone: Parallel) -> None:
    with pytest.raises(ConfigError, match=r"router_aux_loss_coef is 0\.1, but .* is of type qwen3, without experts"):
        exact_learner(model_directory, alone, LossConfig(router_aux_loss_coef=0.1))


def test_records_without_advantage_have_a_part_in_the_balance() -> None:
    given = [
        "--run",
        "r",
        "--db_connection_string",
        "x",
        "--model_name_or_path",
        "m",
        "--router_aux_loss_coef",
        "0.001",
    ]
    with pytest.raises(ConfigError, match="router_aux_loss_coef gives records without advantage a gradient too"):
        TrainerConfig.load(given)
    assert TrainerConfig.load([*given, "--drop_zero_advantage", "false"]).loss.router_aux_loss_coef == 0.001
