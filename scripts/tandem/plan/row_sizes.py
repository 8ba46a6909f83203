"""What a row makes while it passes through a rank: activations, logits, temporaries, from a model's shape, a layout and the row.

u  bytes a number of the type in which layers compute: 2 with mixed_precision bf16
"""

from functools import cached_property
from math import gcd

from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.matrix_cuts import MatrixCuts
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from tandem.plan.rank_parameters import EXACT, computing_bytes

BLOCK_OF_VOCABULARY, KEPT_LOGITS_BYTES = 4096, 2**26  # `trainer/modeling/logprobs.py`, on processors
BLOCK_OF_BACKWARD = 16384  # … and on GPUs


class RowSizes:
    """In bytes. `stage`: one of `layout.pp`."""

    def __init__(self, shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, stage: int = 0) -> None:
        self.shape, self.layout, self.trained, self.row = shape, layout, trained, row
        self.u = computing_bytes(trained, row)
        self.is_first, self.is_last = stage == 0, stage == layout.pp - 1
        self.tokens = -(-row.tokens // layout.cp)
        # of norms and sums, and of experts by ep_size: `trainer/modeling/sequence_parallel.py`
        self.slice = -(-self.tokens // layout.tp)
        self.routed = self.slice if layout.ep > 1 else self.tokens
        # of the slice that has most: those of a reply are neighbors
        self.entries = min(row.trained_tokens, self.tokens)
        self._received = row.received if layout.ep > 1 else 1.0

    @cached_property
    def input_of_layer(self) -> int:
        """What a checkpointed layer keeps."""
        return 0 if self.row.activation_offload else self.u * self.slice * self.shape.hidden

    @cached_property
    def passed_on(self) -> int:
        """A row in flight holds them in addition to activations of its layers: hidden states, sent and received."""
        return self.u * self.tokens * self.shape.hidden * (not self.is_last) + self.received

    @cached_property
    def received(self) -> int:
        """Hidden states, whole, unless the first layer keeps them itself."""
        is_kept = self.row.checkpointing and self.slice == self.tokens and not self.row.activation_offload
        return 0 if self.is_first or is_kept else self.u * self.tokens * self.shape.hidden

    @cached_property
    def sent_back(self) -> int:
        """The gradient of the row before, which stays until the next message."""
        return self.u * self.tokens * self.shape.hidden * (not self.is_first)

    @cached_property
    def given_back(self) -> int:
        """Of a row in its backward: what it has passed on, and the gradient of that."""
        return 2 * self.u * self.tokens * self.shape.hidden * (not self.is_last) + self.received

    @cached_property
    def saved_of_head(self) -> int:
        """Last norm, hidden states of the trained tokens, embedding; of a stage that others follow what it passes on."""
        hidden = self.shape.hidden
        if not self.is_last:
            return self.given_back
        return self.slice * hidden * (EXACT + 2 * self.u) + self.entries * hidden * self.u + self.received

    @cached_property
    def saved_of_layer(self) -> int:
        """What the backward of a layer needs, without activation_checkpointing. Norms keep their input in float32, the normalized
        input where their weight is trained, and what they give; SiLU its input; attention q, k, v, its result and the
        log-sum-exp. Experts by tp_size keep whole rows."""
        of_experts = self.shape.hidden * self.u if self.shape.experts else 0
        of_slice = self.slice * (self._saved_of_norms - of_experts)
        return of_slice + self.tokens * self._saved_of_attention + self.routed * (self._saved_of_mlp + of_experts)

    @cached_property
    def _saved_of_norms(self) -> int:
        return 2 * self.shape.hidden * (EXACT + self._norm_bytes) + 2 * EXACT

    @cached_property
    def _saved_of_attention(self) -> int:
        shape, u, tp = self.shape, self.u, self.layout.tp
        heads = (2 * u * (shape.query + shape.key) + u * shape.key + EXACT * shape.heads) // tp
        if shape.head_norms:
            heads += (shape.query + shape.key) * (EXACT + self._norm_bytes - u) // tp
            heads += EXACT * (shape.heads + shape.key_heads) // tp
        # the result by heads and by tokens; key heads as often as cp_size needs: `trainer/modeling/context_parallel.py`
        if self.layout.cp > 1:
            copies = self.layout.cp // gcd(shape.key_heads // tp, self.layout.cp)
            heads += u * (shape.query + 2 * (copies - 1) * shape.key) // tp
        return heads - u * shape.key // tp

    @cached_property
    def _norm_bytes(self) -> int:
        """Bytes of a number in the normalized input that the backward needs."""
        return self.u if self.trained.lora_rank or self.row.on_cpu else 2 * self.u

    @cached_property
    def _saved_of_mlp(self) -> int:
        shape, u = self.shape, self.u
        if not shape.experts:
            return 4 * u * shape.inner // self.layout.tp
        of_expert = u * shape.hidden + 4 * u * shape.expert_width
        return (
            round(shape.experts_per_token * (self._received * of_expert + u * shape.hidden + 3 * 8))
            + EXACT * shape.experts
        )

    @cached_property
    def saved_of_attention(self) -> int:
        """Of a layer, and its norms: what is left of it when its experts have their gradients."""
        return self.slice * self._saved_of_norms + self.tokens * self._saved_of_attention

    @cached_property
    def early_working(self) -> int:
        """Of a layer's backward: the gradients of the gated product's parts, and of the last matrix."""
        if self.shape.experts:
            return self._working_of_experts()
        inner, hidden, u, tp = self.shape.inner, self.shape.hidden, self.u, self.layout.tp
        of_weight = 0 if self.trained.lora_rank else u * (inner * hidden // tp)
        return self.tokens * (2 * u * inner // tp + hidden * u) + of_weight

    def _working_of_experts(self) -> int:
        shape, u, tp = self.shape, self.u, self.layout.tp
        spread, learns = self.layout.ep > 1, not self.trained.lora_rank
        widths = shape.hidden + (3 * shape.expert_width if spread else 4 * shape.expert_width // tp)
        of_last = u * (shape.experts * shape.expert_width * shape.hidden // (self.layout.ep if spread else tp)) * learns
        rows, of_sum = shape.experts_per_token * self._received, self.routed * shape.hidden * u
        # all their gradients, when the first product's are there: its own result and what came after it are gone
        both = of_sum - self.routed * round(rows * 2 * shape.expert_width * u) + 3 * of_last
        of_last *= 2 if self._copies_experts() else 1
        of_product = of_sum + self.routed * round(rows * widths * u) + of_last
        again = self.forward_of_results if self.row.checkpointing else 0
        return max(of_product, both, self._backward_of_results, again)

    def _copies_experts(self) -> bool:
        """Whether their gradients are copied before they are reduced: of shards that cut another dimension than the first."""
        cuts, experts = MatrixCuts(self.layout), [matrix for matrix in self.shape.layer_matrices() if matrix.second]
        return self.layout.ep == 1 and (self.layout.tp > 1 or any(map(cuts.is_cut_inside, experts)))

    @cached_property
    def _backward_of_results(self) -> int:
        """Of experts, before the product's backward. Gradients of their results: of their sum, in the experts' order, and of the
        weights in it; with ep_size the first two."""
        hidden, gradients = self.shape.hidden * self.u, 2 if self.layout.ep > 1 else 3
        return self.routed * hidden * (gradients * self.shape.experts_per_token + 1)

    @cached_property
    def forward_of_results(self) -> int:
        """With ep_size, before the results are sent back, which a layer saves. Four copies of received rows: as they came,
        multiplied, weighted, and in the order in which they came; the layer's sums."""
        if self.layout.ep == 1:
            return 0
        hidden, chosen = self.shape.hidden * self.u, self.shape.experts_per_token
        return self.routed * (round((4 * self._received - 1) * chosen * hidden) + 2 * hidden)

    @cached_property
    def backward_of_norm(self) -> int:
        """Of the last one, in float32: the gradient by the factor, and four of the mean of squares."""
        return 5 * EXACT * self.slice * self.shape.hidden

    @cached_property
    def logits(self) -> int:
        """`trainer/modeling/logprobs.py`: three chunks of the forward, or in the backward the gradient of a trained head, a
        block of it in float32 twice, its sum and a chunk's, and the hidden states' in float32."""
        vocabulary, hidden, u = self.shape.vocabulary, self.shape.hidden, self.u
        entries = self.entries
        chunk, learns = min(self.row.logprob_chunk, entries), not self.trained.lora_rank
        block = min(vocabulary, BLOCK_OF_VOCABULARY if self.row.on_cpu else BLOCK_OF_BACKWARD)
        of_head = u * vocabulary * hidden + (0 if u == EXACT else 2 * block * hidden * EXACT) if learns else 0
        of_hidden = entries * hidden * (EXACT + (0 if u == EXACT else u))
        if self.row.on_cpu:
            blocks = 2 * chunk * block * EXACT
            saved = entries * vocabulary * EXACT
            return of_head + of_hidden + (saved + blocks if saved <= KEPT_LOGITS_BYTES else blocks)
        forward = 3 * chunk * vocabulary * EXACT + entries * hidden * u
        return max(forward, of_head + of_hidden + chunk * block * (EXACT + u))
