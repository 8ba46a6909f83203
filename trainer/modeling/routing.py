"""Routing of a mixture of experts: its metrics, and the load-balancing loss.

    router_aux_loss = router_aux_loss_coef · mean over layers of E · Σ_e f_e · P_e
    f_e   how often expert e was chosen, by the tokens: Σ_e f_e is the experts per token        no gradient
    P_e   mean over the tokens of the router's probability of e                                gradient

Switch Transformer (arXiv 2101.03961), equations 4 to 6, for several experts per token as transformers' `load_balancing_loss_func`
computes it; even routing gives the coefficient times the experts per token. Each layer is balanced separately, as in the
paper; transformers pools the tokens of all layers, so that layers can compensate each other.

It counts all tokens of the records that an update trains, including prompts and tool results, without padding. A token of
a prefix tree counts once per record that contains it (`TokenTree.copies_N`). f and P are over the whole update, all rows and
all processes: neither merging nor rows nor processes change the loss.

    suffix _LX  layer, expert      _NX  token of the row, expert
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainer.modeling.row_slices import added_up
from trainer.process.peers import Peers


class Routing(NamedTuple):
    """Sums over tokens, in float64."""

    chosen_LX: Tensor  # how often an expert was chosen
    probability_LX: Tensor  # with gradient if the forward had one
    tokens: Tensor

    def detached(self) -> "Routing":
        """The same values without a graph."""
        return Routing(*(tensor.detach() for tensor in self))


def experts_per_token(model: PreTrainedModel) -> int | None:
    """Experts per token of a model whose routers choose by their logits alone and return them; None for other models."""
    shown = getattr(model.base_model, "_can_record_outputs", None) or {}
    if "router_logits" not in shown or not hasattr(model.config, "router_aux_loss_coef"):
        return None
    return int(model.config.num_experts_per_tok)


def routing_of(
    logits: Sequence[Tensor], copies_N: Tensor, chosen: int, replayed: Sequence[tuple[Tensor, Tensor]] = ()
) -> Routing | None:
    """The routing of one forward, from its routers' logits (N, X) per layer; None without routers. `replayed`: of each layer the
    experts that the tokens got instead of their routers' choice, and which tokens did; (): none.
    """
    if not logits:
        return None
    weight_N = copies_N.to(torch.float64)
    given: Sequence[tuple[Tensor, Tensor] | None] = replayed or [None] * len(logits)
    layers = [_of_layer(one, weight_N, chosen, known) for one, known in zip(logits, given, strict=True)]
    return Routing(torch.stack([c for c, _ in layers]), torch.stack([p for _, p in layers]), weight_N.sum())


def _of_layer(
    logits_NX: Tensor, weight_N: Tensor, chosen: int, replayed: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    probability_NX = torch.softmax(logits_NX, -1, dtype=torch.promote_types(logits_NX.dtype, torch.float32))
    indices_NK = torch.topk(probability_NX, chosen, dim=-1).indices
    if replayed is not None:
        experts_NK, given_N = replayed
        indices_NK = torch.where(given_N[:, None], experts_NK, indices_NK)
    chosen_X = weight_N.new_zeros(logits_NX.shape[-1]).scatter_add_(
        0, indices_NK.flatten(), weight_N.repeat_interleave(chosen)
    )
    return chosen_X, (weight_N.to(probability_NX.dtype) @ probability_NX).double()


def over_line(own: Routing, line: Peers) -> Routing:
    """The sum over processes that have a slice of the tokens each, on all of them."""
    return Routing(*(added_up(part, line) for part in own))


def total(parts: Iterable[Routing]) -> Routing:
    """The sum over one or more forwards."""
    chosen, probability, tokens = zip(*parts, strict=True)
    return Routing(sum(chosen), sum(probability), sum(tokens))


def joined_stages(stages: Iterable[Routing | None]) -> Routing | None:
    """The layers of one stage after those of another; None: no stage has routers. Each has counted the same tokens."""
    present = [routing for routing in stages if routing is not None]
    if not present:
        return None
    chosen_LX, probability_LX = (torch.cat([routing[place] for routing in present]) for place in (0, 1))
    return Routing(chosen_LX, probability_LX, present[0].tokens)


def router_aux_loss(own: Routing, whole: Routing, coefficient: float, layers: int | None = None) -> Tensor:
    """The share of `own` in the loss of the update `whole`. The shares add up to the loss.

    `layers`: that have routers in the whole model, where both are of one stage; None: those of `whole`.
    """
    here, experts = whole.chosen_LX.shape
    tokens = whole.tokens.clamp(min=1.0)
    return coefficient * experts / (layers or here) * (whole.chosen_LX / tokens * own.probability_LX / tokens).sum()


def load_metrics(whole: Routing) -> dict[str, float]:
    """Maximum over mean tokens per expert: 1 is even, E / (experts per token) is collapse."""
    mean_L = whole.chosen_LX.mean(1)
    if not mean_L.all():
        return {}
    imbalance_L = whole.chosen_LX.amax(1) / mean_L
    return {
        "experts/load_imbalance_mean": float(imbalance_L.mean()),
        "experts/load_imbalance_max": float(imbalance_L.max()),
        "experts/unused_fraction": float((whole.chosen_LX == 0).double().mean()),
    }
