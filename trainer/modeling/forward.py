"""The forward of a row: a forest of tokens in, the log-probabilities of the trained tokens out.

The log-probabilities are computed inside one module's forward, because FSDP2 gathers the head's weight (often tied to
the embedding) only while the module that owns it runs, and again for its backward. So: wrap, shard, then use.

    lm = TreeLM(causal_lm)
    shard_model(lm, layer_class_names(causal_lm), parallel)      # each layer, then lm itself
    choose_forward_mode(lm, "auto", device)                           # trainer/modeling/forward_choice.py
    logprob_E, entropy_E = row_logprobs(lm, row.to(device), chunk=512, attn=lm.mask(device))
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from shared.errors import ConfigError, DataError
from trainer.modeling.attention import BLOCK, Mask, MaskBuilder, choose, dense_mask, interval_block_mask
from trainer.modeling.context_parallel import of_all, over_slices, own_part, plain_name
from trainer.modeling.forward_ways import Head, Way
from trainer.modeling.logprobs import logits_logprobs, token_logprobs
from trainer.modeling.node_attention import NodeSpans
from trainer.modeling.pipeline_parallel import Stage
from trainer.modeling.products import TOKENS, padding
from trainer.modeling.router_replay import RouterReplay, router_replay
from trainer.modeling.routing import Routing, experts_per_token, over_line, routing_of
from trainer.modeling.row_slices import added_up, own_tokens
from trainer.modeling.sequence_parallel import routers_line
from trainer.modeling.truncation import columns
from trainer.modeling.vision import VisionTower, vision_parts
from trainer.process.peers import Peers
from trainer.process.private_apis import attention_name
from trainer.trees.packing import Row

# DTensor derives the sharding of every operation anew for each new length (about 50 operations, 14 ms each on a busy CPU).
SHARED_LAYERS_MULTIPLE = 64


class Forwarded(NamedTuple):
    """The result of a row's forward. `routing`: of this process's tokens, None for a model without experts."""

    logprob_E: Tensor
    entropy_E: Tensor | None  # None unless requested
    outside_E: Tensor | None  # as in `TokenScores`
    routing: Routing | None

    def columns(self) -> list[Tensor]:
        """Those that there are."""
        return [column for column in self[:3] if column is not None]

    def detached(self) -> "Forwarded":
        """The same values without a graph."""
        entropy_E, outside_E = (None if column is None else column.detach() for column in self[1:3])
        routing = None if self.routing is None else self.routing.detached()
        return Forwarded(self.logprob_E.detach(), entropy_E, outside_E, routing)


class StageOutput(NamedTuple):
    """The result of a row's forward in a stage that others follow. `routing`: of this process's tokens in the stage's layers."""

    hidden: Tensor  # (1, N, D)
    routing: Routing | None


class TreeLM(nn.Module):
    """A causal language model of transformers whose forward takes a Row and returns log-probabilities.

    `way`: how it is computed. Initially trees with the attention that the model was loaded with;
    `forward_choice.choose_forward_mode` finds the way that agrees with the model's own forward.
    If `way.trees` is False, rows must be single sequences.
    `context`: processes that each compute a slice of every row and return the same result; they must make the same calls.
    `tp_size`: processes that share each layer. `stage`: which layers it has; None: all. Only the last one has log-probs; the
    others return hidden states (`trainer/modeling/pipeline.py`).
    """

    causal_lm: PreTrainedModel
    way: Way
    context: Peers | None
    experts_per_token: int | None
    stage: Stage | None
    replay: RouterReplay | None  # None: no routers

    def __init__(
        self,
        causal_lm: PreTrainedModel,
        context: Peers | None = None,
        *,
        tp_size: int = 1,
        stage: Stage | None = None,
    ) -> None:
        super().__init__()
        self.stage = stage
        self.context = context if context is not None and context.size > 1 else None
        self._tp_size = tp_size
        self.causal_lm = causal_lm
        self.way = Way(attention_name(causal_lm), trees=True)
        self.experts_per_token = experts_per_token(causal_lm)
        self.replay = router_replay(causal_lm)
        self._routers_line = routers_line(causal_lm)
        self._vision = VisionTower(causal_lm) if vision_parts(causal_lm) else None
        rotary: list[Any] = [module for module in causal_lm.modules() if hasattr(module, "max_seq_len_cached")]
        self._dynamic = [module for module in rotary if "dynamic" in str(getattr(module, "rope_type", ""))]

    @property
    def sharing(self) -> Peers | None:
        """The processes with slices of the same row; None: each computes whole rows, as in the model's own forward."""
        return self.context if over_slices(self.way.attention) else None

    def free_features(self) -> None:
        """Those of images that a frozen vision tower keeps for later rows."""
        if self._vision is not None:
            self._vision.free_features()

    def mask(self, device: torch.device | str) -> MaskBuilder:
        """The mask builder of its rows."""
        attention = plain_name(self.way.attention)
        needs_one = self.sharing is not None and attention == "flex_attention"  # a slice has no causal mask of its own
        return choose(attention, device, linear=not self.way.trees and not needs_one)

    def padded(self, row: Row, multiple: int = 1) -> Row:
        """Pad to a multiple of `multiple` for processes that share the row, and to few distinct lengths for shared layers and
        for products by oneDNN.

        Rows of single sequences are not padded for few lengths where their model depends on the length (dynamic rope).
        """
        shares = 1 if self.sharing is None else self.sharing.size
        few = SHARED_LAYERS_MULTIPLE if self._tp_size > 1 and self.way.trees else 1
        if (self.way.trees or not self._dynamic) and padding(row.num_tokens, self.causal_lm.dtype, row.ids_N.device):
            few = math.lcm(few, TOKENS)
        return row.padded(math.lcm(multiple, shares, few))

    def forward(
        self, row: Row, mask: Mask, chunk: int, with_entropy: bool, received: Tensor | None = None
    ) -> Forwarded | StageOutput:
        """Log-probs of the row's entries; each distinct (token, distribution) is computed once. Hidden states of a stage that
        others follow. `received`: those of the stage before.
        """
        self._forget_lengths()
        predictor_U, context = row.parents_N[row.node_U], self.sharing
        here, own_U = (slice(None), None) if context is None else own_part(row.num_tokens, predictor_U, context)
        node_U, temperature_U, truncation_U = row.node_U, row.temperature_U, columns(row.truncation_U)
        if own_U is not None:
            predictor_U, node_U, temperature_U = predictor_U[own_U] - here.start, node_U[own_U], temperature_U[own_U]
            truncation_U = None if truncation_U is None else truncation_U[own_U]
        routed = self._routed(row, here)
        self._replay(row, routed)
        arguments = self._arguments(row, mask, here)
        if received is not None:
            del arguments["input_ids"]
            arguments["inputs_embeds"] = received
        if self.stage is not None and not self.stage.is_last:
            output = self.causal_lm.base_model(**arguments)
            return StageOutput(output.last_hidden_state, self._routing(output, row, routed))
        if self.way.head is Head.CHUNKED:
            output = self.causal_lm.base_model(**arguments)
            head: Any = self.causal_lm.get_output_embeddings()
            scores = token_logprobs(
                output.last_hidden_state[0],
                head.weight,
                predictor_U,
                row.ids_N[node_U],
                temperature_U,
                chunk,
                truncation_E=truncation_U,
                with_entropy=with_entropy,
            )
        else:
            selection = {"logits_to_keep": predictor_U} if self.way.head is Head.KEPT else {}
            output = self.causal_lm(**arguments, **selection)
            logits_UV = output.logits[0] if selection else output.logits[0].index_select(0, predictor_U)
            scores = logits_logprobs(
                logits_UV, row.ids_N[node_U], temperature_U, truncation_E=truncation_U, with_entropy=with_entropy
            )
        if context is not None and own_U is not None:
            scores = scores.each(partial(of_all, own_U=own_U, count=len(row.node_U), context=context))
        routing = self._routing(output, row, routed)
        logprob_E, entropy_E, outside_E = scores.each(lambda of_U: of_U[row.edge_E])
        unused = None if self._vision is None or row.images is not None else self._vision.unused()
        if unused is not None:
            logprob_E = logprob_E + unused
        return Forwarded(logprob_E, entropy_E, outside_E, routing)

    def _routed(self, row: Row, here: slice) -> slice:
        """The tokens of `here` that this process's routers have."""
        line = self._routers_line
        if line is None:
            return here
        first, stop, _ = here.indices(row.num_tokens)
        own = own_tokens(stop - first, line)
        return slice(first + own.start, first + own.stop)

    def _routing(self, output: Any, row: Row, routed: slice) -> Routing | None:
        if self.experts_per_token is None or not self._has_routers:
            return None
        choices = () if self.replay is None else self.replay.all_choices()
        routing = routing_of(output.router_logits, row.copies_N[routed], self.experts_per_token, choices)
        return routing if routing is None or self._routers_line is None else over_line(routing, self._routers_line)

    def replay_counts(self, device: torch.device) -> Tensor | None:
        """`RouterReplay.counts` of all tokens of the rows, or of their slices by `context`; None: no routers."""
        if self.replay is None:
            return None
        counts, line = self.replay.counts.to(device), self._routers_line
        return counts if line is None else added_up(counts, line)

    @property
    def _has_routers(self) -> bool:
        """False on a stage without experts of a model that has some."""
        return self.replay is None or self.replay.has_routers

    def _replay(self, row: Row, routed: slice) -> None:
        """Raises ConfigError for a row with routed experts and a model without."""
        if self.replay is not None:
            self.replay.use(row, routed)
        elif row.experts is not None:
            raise ConfigError(
                f"a row has routed experts, but a model of type {self.causal_lm.config.model_type} has no routers that can "
                "repeat them; expected router_replay false"
            )

    def _arguments(self, row: Row, mask: Mask, here: slice) -> dict[str, Any]:
        """The model's arguments. For a row with one sequence the model makes its own positions: some start at 2.

        Raises DataError for a row with images and a model without a vision tower.
        """
        arguments: dict[str, Any] = {"input_ids": row.ids_N[None, here], "use_cache": False}
        if self.way.trees or self.sharing is not None:
            arguments["position_ids"] = row.positions_N[None, here]
        if mask is not None:
            arguments["tree_spans" if isinstance(mask, NodeSpans) else "attention_mask"] = mask
        if self.sharing is not None:
            arguments["context"] = self.sharing
        if self.experts_per_token is not None:
            arguments["output_router_logits"] = self._has_routers
        if row.images is not None:
            if self._vision is None:
                raise DataError(
                    f"a row has {len(row.images.digests)} images; expected text alone for a model of type "
                    f"{self.causal_lm.config.model_type}"
                )
            arguments |= self._vision.arguments(row.images, row.ids_N, trees=self.way.trees)
        return arguments

    def _forget_lengths(self) -> None:
        """Reset dynamic rotary embeddings: they store the longest row so far, so results would depend on earlier rows."""
        for rotary in self._dynamic:
            if rotary.max_seq_len_cached != rotary.original_max_seq_len:
                rotary.max_seq_len_cached = rotary.original_max_seq_len
                rotary.inv_freq = rotary.original_inv_freq.to(rotary.inv_freq.device)


def forward_row(
    lm: nn.Module, row: Row, *, chunk: int = 512, attn: MaskBuilder = dense_mask, with_entropy: bool = False
) -> Forwarded:
    """Log-probabilities of the distribution that each entry's token was drawn from, with gradient, by `lm` (a TreeLM, sharded or
    not).

    float32, or float64 for a float64 model. `row` must be on the model's device.
    """
    forwarded = forward_stage(lm, row, None, chunk=chunk, attn=attn, with_entropy=with_entropy)
    assert isinstance(forwarded, Forwarded), "the rows of a stage go through RowPipeline"
    return forwarded


# 6 parameters and a model: the row, and what the stage before has made of it
def forward_stage(
    lm: nn.Module, row: Row, received: Tensor | None, *, chunk: int, attn: MaskBuilder, with_entropy: bool
) -> Forwarded | StageOutput:
    """`forward_row` of one stage: its result, or hidden states for the next one. `received`: None for the first."""
    row = _padded(lm, row, attn)
    result: Forwarded | StageOutput = lm(row, attn(row.ends_N), chunk, with_entropy, received)
    return result


def hidden_shape(lm: TreeLM, row: Row, attn: MaskBuilder) -> tuple[int, int, int]:
    """Of hidden states that go from one stage to the next."""
    assert lm.stage is not None, "of a model in stages"
    shares = 1 if lm.sharing is None else lm.sharing.size
    return 1, _padded(lm, row, attn).num_tokens // shares, lm.stage.width


def _padded(lm: nn.Module, row: Row, attn: MaskBuilder) -> Row:
    multiple = BLOCK if attn is interval_block_mask else 1
    return lm.padded(row, multiple) if isinstance(lm, TreeLM) else row.padded(multiple)


def row_logprobs(
    lm: nn.Module, row: Row, *, chunk: int = 512, attn: MaskBuilder = dense_mask, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities and entropies of `forward_row`."""
    forwarded = forward_row(lm, row, chunk=chunk, attn=attn, with_entropy=with_entropy)
    return forwarded.logprob_E, forwarded.entropy_E
