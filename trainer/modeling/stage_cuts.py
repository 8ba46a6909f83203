"""Where a model is cut into stages: the slowest stage is as fast as can be, and among such cuts the largest as small as can be.

A step takes as long as its slowest stage for each row, so operations come first. Counted are products with matrices, per token:

    forward                 1 for each parameter of a matrix; of experts, those that a token gets; of the embedding none
    backward                1 for the gradient of hidden states, where this or an earlier layer trains; 1 for a trained matrix
    head                    the same, for `TRAINED_SHARE` of the tokens; its backward computes the logits again

So of a fully trained model 10 parameters of the head count as 8 of a layer. Attention itself is not counted: it is alike in
all layers. Parameters decide between cuts that are equally fast; the embedding counts there.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from shared.errors import ConfigError
from trainer.modeling.expert_parallel import expert_modules

TRAINED_SHARE = (
    0.6  # of a row's tokens, those that the head is computed for: unknown before the first row; a third to nearly all
)


class Cost(NamedTuple):
    """Of a layer, or of all that a stage has. `operations`: products per token, forward and backward."""

    operations: float
    parameters: float

    def plus(self, other: "Cost") -> "Cost":
        return Cost(self.operations + other.operations, self.parameters + other.parameters)


class ModelCosts(NamedTuple):
    """`first`: what the first stage has before the layers; `last`: what the last one has after them."""

    layers: Sequence[Cost]
    first: Cost = Cost(0, 0)
    last: Cost = Cost(0, 0)


def stage_costs(model: PreTrainedModel, before: Sequence[str], after: Sequence[str]) -> ModelCosts:
    """`before`, `after`: names of the base model's modules around its layers."""
    base: Any = model.base_model
    config: Any = model.config.get_text_config()
    chosen = {
        module: config.num_experts_per_tok / module.num_experts
        for module in expert_modules(model).values()
        if hasattr(config, "num_experts_per_tok") and hasattr(module, "num_experts")
    }
    share = {parameter: part for module, part in chosen.items() for parameter in module.parameters()}
    trained = False

    def cost(*modules: nn.Module | None, passes: int = 1, tokens: float = 1.0) -> Cost:
        """`passes`: how often the forward's products are computed."""
        nonlocal trained
        parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
        trained = trained or any(parameter.requires_grad for parameter in parameters)
        embedded = {m.weight for module in modules if module is not None for m in module.modules() if _embeds(m)}
        products = [
            parameter.numel() * share.get(parameter, 1.0) * (passes + trained + parameter.requires_grad)
            for parameter in parameters
            if parameter.dim() > 1 and parameter not in embedded
        ]
        return Cost(tokens * sum(products), sum(parameter.numel() for parameter in parameters))

    first = cost(*(getattr(base, name) for name in before))
    layers = [cost(layer) for layer in base.layers]
    norm, head = cost(*(getattr(base, name) for name in after)), model.get_output_embeddings()
    return ModelCosts(layers, first, norm.plus(cost(head, passes=2, tokens=TRAINED_SHARE)))


def _embeds(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)


def stage_starts(costs: ModelCosts, stages: int) -> list[int]:
    """The first layer of each stage, and the number of layers.

    Raises ConfigError for fewer layers than stages.
    """
    layers, first, last = costs
    if len(layers) < stages:
        raise ConfigError(
            f"pp_size is {stages}, but the model has {len(layers)} layers; expected at most as many stages"
        )
    sums = list(accumulate(layers, Cost.plus, initial=Cost(0, 0)))

    def of_stage(stage: int, start: int, end: int) -> Cost:
        """`stage`: from 1 on."""
        ends = (first if stage == 1 else Cost(0, 0)).plus(last if stage == stages else Cost(0, 0))
        return Cost(
            *(later - earlier + more for later, earlier, more in zip(sums[end], sums[start], ends, strict=True))
        )

    def smallest(place: int, limit: float) -> tuple[float, list[int]]:
        """(largest stage, starts), by operations (0) or parameters (1); no stage has more operations than `limit`."""
        # best[s][n]: (largest stage, start of the last one) of the first n layers in s stages
        best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
        for stage in range(1, stages + 1):
            of_ends = {}
            for end in range(stage, len(layers) - (stages - stage) + 1):
                costs_of = {start: of_stage(stage, start, end) for start in best[-1] if start < end}
                cuts = [
                    (max(best[-1][start][0], cost[place]), start)
                    for start, cost in costs_of.items()
                    if cost.operations <= limit
                ]
                if cuts:
                    of_ends[end] = min(cuts)
            best.append(of_ends)
        starts = [len(layers)]
        for stage in range(stages, 0, -1):
            starts.append(best[stage][starts[-1]][1])
        return best[stages][len(layers)][0], starts[::-1]

    slowest, _ = smallest(0, float("inf"))
    return smallest(1, slowest)[1]
