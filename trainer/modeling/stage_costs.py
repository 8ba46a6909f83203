"""What the stages of a model cost, for `shared/weights/stage_starts.py` to cut it.

Counted are products with matrices, per token:

    forward                 1 for each parameter of a matrix; of experts, those that a token gets; of the embedding none
    backward                1 for the gradient of hidden states, where this or an earlier layer trains; 1 for a trained matrix
    head                    the same, for `TRAINED_SHARE` of the tokens; its backward computes the logits again

So of a fully trained model 10 parameters of the head count as 8 of a layer. Attention itself is not counted: it is alike in
all layers. Of the parameters those of the embedding count too.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from shared.weights.stage_starts import TRAINED_SHARE, Cost, ModelCosts
from trainer.modeling.expert_parallel import expert_modules


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
