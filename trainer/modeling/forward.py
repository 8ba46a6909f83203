"""One forward of a row: a forest of tokens in, the log-probabilities of what is trained out.

The log-probabilities are computed inside one module's forward, because FSDP2 gathers the head's weight (often tied to
the embedding) only while the module that owns it runs, and again for its backward. So: wrap, shard, then use.

    lm = TreeLM(causal_lm)
    shard_model(lm, layer_classes(causal_lm), parallel)      # each layer, then lm itself
    mask = choose(causal_lm.config._attn_implementation, device)
    logprob_E, entropy_E = row_logprobs(lm, row.to(device), chunk=512, attn=mask)
"""

import math
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.losses import LossBatch
from trainer.modeling.attention import BLOCK, Mask, MaskBuilder, dense_mask, interval_block_mask, tree_obstacle
from trainer.modeling.context_parallel import of_all, own_part
from trainer.modeling.logprobs import token_logprobs
from trainer.modeling.node_attention import Spans
from trainer.modeling.routing import Routing, experts_per_token, routing_of
from trainer.parallel import Peers
from trainer.trees.packing import Row


class Forwarded(NamedTuple):
    """What a row's forward gives. `routing` is of this process's tokens of the row, None for a model without experts."""

    logprob_E: Tensor
    entropy_E: Tensor | None  # None unless asked for
    routing: Routing | None


class TreeLM(nn.Module):
    """A causal language model of transformers whose forward takes a Row and returns log-probabilities, never logits.

    `obstacle` says why no tree can go through its layers, None where one can; then rows must be single sequences.
    `context`: processes that each take their slice of every row, and all return the same; they must make the same calls.
    Raises ValueError for a model whose head is more than one matrix.
    """

    causal_lm: PreTrainedModel
    obstacle: str | None
    context: Peers | None
    experts_per_token: int | None

    def __init__(self, causal_lm: PreTrainedModel, context: Peers | None = None) -> None:
        super().__init__()
        self.context = context if context is not None and context.size > 1 else None
        self.obstacle = tree_obstacle(causal_lm.config)
        head = causal_lm.get_output_embeddings()
        if not isinstance(head, nn.Linear) or head.bias is not None:
            raise ValueError(f"{type(causal_lm).__name__}: the head is {head}; expected a Linear without bias")
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(causal_lm.config, name, None) not in (None, 1.0):
                raise ValueError(
                    f"{type(causal_lm).__name__}: {name} is set; expected logits that are one matrix product"
                )
        self.causal_lm = causal_lm
        self.experts_per_token = experts_per_token(causal_lm)

    def forward(self, row: Row, mask: Mask, chunk: int, with_entropy: bool) -> Forwarded:
        """Of the row's entries; each distinct (token, temperature) is computed once."""
        if self.obstacle is not None and mask is not None:
            raise ValueError(f"{self.causal_lm.config.model_type}: {self.obstacle}; trees need full attention only")
        attention = {"tree_spans": mask} if isinstance(mask, Spans) else {"attention_mask": mask}
        predictor_U, context = row.parents_N[row.node_U], self.context
        here, own_U = (slice(None), None) if context is None else own_part(row.num_tokens, predictor_U, context)
        output = self.causal_lm.base_model(
            input_ids=row.ids_N[None, here],
            position_ids=row.positions_N[None, here],
            use_cache=False,
            **attention,
            **({} if context is None else {"context": context}),
            **({} if self.experts_per_token is None else {"output_router_logits": True}),
        )
        node_U, temperature_U = row.node_U, row.temperature_U
        if own_U is not None:
            predictor_U, node_U, temperature_U = predictor_U[own_U] - here.start, node_U[own_U], temperature_U[own_U]
        logprob_U, entropy_U = token_logprobs(
            output.last_hidden_state[0],
            self.causal_lm.get_output_embeddings().weight,
            predictor_U,
            row.ids_N[node_U],
            temperature_U,
            chunk,
            with_entropy=with_entropy,
        )
        if context is not None and own_U is not None:
            count = len(row.node_U)
            logprob_U = of_all(logprob_U, own_U, count, context)
            entropy_U = None if entropy_U is None else of_all(entropy_U, own_U, count, context)
        routing = None
        if self.experts_per_token is not None:
            routing = routing_of(output.router_logits, row.copies_N[here], self.experts_per_token)
        return Forwarded(logprob_U[row.edge_E], None if entropy_U is None else entropy_U[row.edge_E], routing)


def forward_row(
    lm: nn.Module, row: Row, *, chunk: int = 512, attn: MaskBuilder = dense_mask, with_entropy: bool = False
) -> Forwarded:
    """Of `lm` (a TreeLM, sharded or not), with gradient, the log-probabilities at each entry's temperature.

    float32, or float64 for a float64 model. `row` must be on the model's device.
    """
    shares = lm.context.size if isinstance(lm, TreeLM) and lm.context is not None else 1
    row = row.padded(math.lcm(BLOCK if attn is interval_block_mask else 1, shares))
    forwarded: Forwarded = lm(row, attn(row.ends_N), chunk, with_entropy)
    return forwarded


def row_logprobs(
    lm: nn.Module, row: Row, *, chunk: int = 512, attn: MaskBuilder = dense_mask, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The log-probabilities and the entropies of `forward_row`."""
    forwarded = forward_row(lm, row, chunk=chunk, attn=attn, with_entropy=with_entropy)
    return forwarded.logprob_E, forwarded.entropy_E


def loss_batch(
    row: Row,
    logprob_E: Tensor,
    entropy_E: Tensor | None = None,
    *,
    proximal_logprob_E: Tensor | None = None,
    reference_logprob_E: Tensor | None = None,
) -> LossBatch:
    """What the losses need of a row and its log-probabilities."""
    return LossBatch(
        new_logprob_E=logprob_E,
        old_logprob_E=row.old_logprob_E,
        advantage_E=row.advantage_E,
        trajectory_E=row.trajectory_E,
        turn_E=row.turn_E,
        staleness_E=row.staleness_E,
        entropy_E=entropy_E,
        proximal_logprob_E=proximal_logprob_E,
        reference_logprob_E=reference_logprob_E,
    )
