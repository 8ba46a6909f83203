"""What would be wrong is noticed: if these passed, the equalities of test_exactness.py would prove nothing."""

import dataclasses

import torch
from transformers import DynamicCache, PreTrainedModel

from tests.trainer.builders import STALENESS, gradients, relative_difference, tiny_model
from tests.trainer.exactness import CONFIGS, TOLERANCE, backward, forking_records, one_by_one
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.attention import dense_mask
from trainer.trees.packing import pack
from trainer.trees.tree import merge


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
    (row,) = pack([merge(records).at(STALENESS)], 1000)
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
    records, config = forking_records(), LossConfig(loss=LossName.GRPO, skip_length_normalization=True)
    _, expected = one_by_one(model, records, config)
    (row,) = pack([merge(records)], 1000)
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
        engine_E=torch.zeros(len(row.node_U), dtype=torch.int64),
    )
    model.zero_grad()
    backward(model, shortcut, Denominators.count(torch.tensor([int(r.trained_N.sum()) for r in records])), config)
    assert relative_difference(gradients(model), expected) > 1e-2
