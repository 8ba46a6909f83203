"""The sizes of which a rank's memory is made, from a model's shape, a layout and a row: tensors, collectives, activations,
logits.

u  bytes a number of the type in which layers compute: 2 with mixed_precision bf16
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tandem.launch.trainer_memory import BYTES, TrainedAs, nf4_bytes, state_bytes
from tandem.plan.models import Matrix, ModelShape
from tandem.plan.planned_rank import Layout, RankMemory, TrainedRow
from tandem.plan.stages import layers_of_stages

EXACT = 4  # bytes of float32: of norms, soft maxima and log-probs
BF16 = 2
BLOCK_OF_VOCABULARY, KEPT_LOGITS_BYTES = 4096, 2**26  # `trainer/modeling/logprobs.py`, on processors
BLOCK_OF_BACKWARD = 16384  # … and on GPUs


def published_bytes(shape: ModelShape, trained: TrainedAs) -> int:
    """Of one version: all parameters in their type, or the adapter."""
    if not trained.lora_rank:
        return BYTES[trained.dtype] * shape.numbers
    parts = RankSizes(shape, Layout(ranks=1), trained, TrainedRow(tokens=0, trained_tokens=0))
    return max(EXACT, BYTES[trained.dtype]) * shape.layers * parts.layer.trained_whole


@dataclass(frozen=True, slots=True)
class SizesOfGroup:
    """Numbers of tensors that FSDP2 gathers and reduces together. `local`: of one rank. `whole`: put together, this rank's
    part by tp_size. `padded`: what the collective carries, whose tensors have a multiple of the shards as their first
    dimension."""

    local: int
    whole: int
    padded: int
    trained_local: int
    trained_whole: int
    trained_padded: int


# 39 methods: each is one size of a rank, of tensors or of what a row makes, by the same layout, and many are made of others
class RankSizes:
    """The sizes that the moments are made of, in bytes unless they are numbers. `stage`: one of `layout.pp`. It has `layers`, and
    the embedding if it is the first, the head if it is the last."""

    def __init__(self, shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, stage: int = 0) -> None:
        self.shape, self.layout, self.trained, self.row = shape, layout, trained, row
        self.stored = BYTES[trained.dtype]
        self.u = BF16 if row.mixed else self.stored
        self.tokens = -(-row.tokens // layout.cp)
        # of norms and sums: `trainer/modeling/sequence_parallel.py`, whose layers have no experts by ep_size
        self.slice = self.tokens if layout.ep > 1 else -(-self.tokens // layout.tp)
        # of the slice that has most: those of a reply are neighbors
        self.entries = min(row.trained_tokens, self.tokens)
        self.is_first, self.is_last = stage == 0, stage == layout.pp - 1
        self.layers = layers_of_stages(shape, layout.pp, learned=not trained.lora_rank)[stage]
        self.in_flight = min(layout.pp - stage, row.rows)  # rows whose activations it holds at most
        spread = [matrix for matrix in shape.layer_matrices() if self._is_spread(matrix)]
        self.layer = self._group([matrix for matrix in shape.layer_matrices() if matrix not in spread])
        self.experts = self._group(spread)  # gathered apart from the rest of their layer
        self.root_matrices = shape.root_matrices(first=self.is_first, last=self.is_last)
        self.root = self._group(self.root_matrices)

    def _is_spread(self, matrix: Matrix) -> bool:
        """By ep_size."""
        return self.layout.ep > 1 and matrix.second > 0

    def _group(self, matrices: Sequence[Matrix]) -> SizesOfGroup:
        base = [matrix for matrix in matrices if not (self._is_quantized and matrix.is_linear)]
        adapters = list(self._adapters(matrices)) if self.trained.lora_rank else []
        learned = adapters if self.trained.lora_rank else list(matrices)
        return SizesOfGroup(*self._sizes([*base, *adapters]), *self._sizes(learned))

    @property
    def _is_quantized(self) -> bool:
        return self.trained.base_quantization == "nf4" and self.trained.lora_rank > 0

    def _adapters(self, matrices: Sequence[Matrix]) -> Iterator[Matrix]:
        rank = self.trained.lora_rank
        for matrix in matrices:
            if matrix.is_linear:
                yield Matrix(rank, matrix.width, "columns" if matrix.cut == "columns" else "none")
                yield Matrix(matrix.rows, rank, "rows" if matrix.cut == "rows" else "none")

    def _sizes(self, matrices: Sequence[Matrix]) -> tuple[int, int, int]:
        """Numbers: local, whole, padded."""
        local = sum(prod(self._shard(matrix)) for matrix in matrices)
        padded = sum(prod(self._shard(matrix)) * self._shards(matrix) for matrix in matrices)
        # `shard_model` leaves the only rank of a CPU as it is
        is_sharded = self.layout.stage_ranks > 1 or not self.row.on_cpu
        return local, sum(prod(self._own(matrix)) for matrix in matrices), padded if is_sharded else 0

    def _shard(self, matrix: Matrix) -> tuple[int, int]:
        """(rows, width) of this rank's shard: `trainer/process/expert_sharding.py`."""
        (rows, width), shards = self._own(matrix), self._shards(matrix)
        return (rows, width // shards) if self._is_cut_inside(matrix) else (-(-rows // shards), width)

    def _is_cut_inside(self, matrix: Matrix) -> bool:
        """Whether FSDP2 cuts another dimension than the first."""
        (rows, width), shards = self._own(matrix), self._shards(matrix)
        if not matrix.second or rows % shards == 0:
            return False
        return matrix.second % shards == 0 or width // matrix.second % shards == 0

    def _shards(self, matrix: Matrix) -> int:
        return self.layout.expert_shards if self._is_spread(matrix) else self.layout.shards

    def _own(self, matrix: Matrix) -> tuple[int, int]:
        """(rows, width) of this rank's part by tp_size, or by ep_size."""
        if self._is_spread(matrix):
            return matrix.rows // self.layout.ep, matrix.width
        tp = self.layout.tp
        return (
            -(-matrix.rows // tp) if matrix.cut == "rows" else matrix.rows,
            -(-matrix.width // tp) if matrix.cut == "columns" else matrix.width,
        )

    def states(self) -> RankMemory:
        """Weights and the optimizer's states, which are there all the time."""
        layers = self.layers
        weights = self.stored * self.local_numbers
        if self._is_quantized:  # codes are buffers: every rank has all of them
            weights += layers * sum(nf4_bytes(m.numbers) for m in self.shape.layer_matrices() if m.is_linear)
        optimizer = layers * self._states_of(self.shape.layer_matrices(), in_layer=True)
        if not self.trained.lora_rank:
            optimizer += self._states_of(self.root_matrices, in_layer=False)
        if not self.row.optimizer_offload:
            return RankMemory(moment="between steps", weights=weights, optimizer=optimizer)
        gradients = self.stored * self.reduced_numbers
        return RankMemory(moment="between steps", weights=0, optimizer=0, host=weights + optimizer + gradients)

    @property
    def local_numbers(self) -> int:
        return self.layers * (self.layer.local + self.experts.local) + self.root.local

    @property
    def reduced_numbers(self) -> int:
        """Of this rank's gradients."""
        return self.layers * (self.layer.trained_local + self.experts.trained_local) + self.root.trained_local

    def _states_of(self, matrices: Sequence[Matrix], *, in_layer: bool) -> int:
        learned = list(self._adapters(matrices)) if self.trained.lora_rank else matrices
        total = 0
        for matrix in learned:
            rows, width = self._shard(matrix)
            local = (rows, width) if width > 1 else (rows,)
            size = max(self.stored, EXACT) if self.trained.lora_rank else self.stored
            total += state_bytes(local, self.trained.optim, size, in_layer=in_layer)
        return total

    @property
    def root_gradient_bytes(self) -> int:
        """Of the head, from its backward to the embedding's: not reduced before."""
        return 0 if self.trained.lora_rank or not self.is_last else self.u * self.shape.vocabulary * self.shape.hidden

    @property
    def reduced_of_layer(self) -> int:
        """This rank's gradients, which optimizer_offload moves to the host at once."""
        numbers = self.layer.trained_local + self.experts.trained_local
        return 0 if self.row.optimizer_offload else numbers * self.stored

    @property
    def unreduced_of_layer(self) -> int:
        """Whole gradients, which the rows before the last one leave for it; in float32 if layers compute in another type."""
        numbers = self.layer.trained_whole + self.experts.trained_whole
        return 0 if self.row.reduces_each else numbers * (EXACT if self.row.mixed else self.stored)

    @property
    def unreduced_of_root(self) -> int:
        return 0 if self.row.reduces_each else self.root.trained_whole * (EXACT if self.row.mixed else self.stored)

    @property
    def reduced_of_root(self) -> int:
        return 0 if self.row.optimizer_offload else self.root.trained_local * self.stored

    def reducing(self, group: SizesOfGroup) -> int:
        """The input of a reduce-scatter in float32; gloo reduces all of a copy, and takes its part of that."""
        return group.trained_padded * EXACT * (2 if self.row.on_cpu else 1)

    @property
    def input_of_layer(self) -> int:
        """What a checkpointed layer keeps."""
        return 0 if self.row.activation_offload else self.u * self.slice * self.shape.hidden

    @property
    def passed_on(self) -> int:
        """A row in flight holds them in addition to activations of its layers: hidden states, sent and received."""
        return self.u * self.tokens * self.shape.hidden * (not self.is_last) + self.received

    @property
    def received(self) -> int:
        """Hidden states, whole, unless the first layer keeps them itself."""
        is_kept = self.row.checkpointing and self.slice == self.tokens and not self.row.activation_offload
        return 0 if self.is_first or is_kept else self.u * self.tokens * self.shape.hidden

    @property
    def sent_back(self) -> int:
        """The gradient of the row before, which stays until the next message."""
        return self.u * self.tokens * self.shape.hidden * (not self.is_first)

    @property
    def given_back(self) -> int:
        """Of a row in its backward: what it has passed on, and the gradient of that."""
        return 2 * self.u * self.tokens * self.shape.hidden * (not self.is_last) + self.received

    @property
    def saved_of_head(self) -> int:
        """Last norm, hidden states of the trained tokens, embedding; of a stage that others follow what it passes on."""
        hidden = self.shape.hidden
        if not self.is_last:
            return self.given_back
        return self.slice * hidden * (EXACT + 2 * self.u) + self.entries * hidden * self.u + self.received

    @property
    def saved_of_layer(self) -> int:
        """What the backward of a layer needs, without activation_checkpointing. Norms keep their input in float32, the normalized
        input where their weight is trained, and what they give; SiLU its input; attention q, k, v, its result and the
        log-sum-exp. Experts keep whole rows."""
        of_experts = self.shape.hidden * self.u if self.shape.experts else 0
        of_slice = self.slice * (self._saved_of_norms - of_experts)
        return of_slice + self.tokens * (self._saved_of_attention + self._saved_of_mlp + of_experts)

    @property
    def _saved_of_norms(self) -> int:
        return 2 * self.shape.hidden * (EXACT + self._norm_bytes) + 2 * EXACT

    @property
    def _saved_of_attention(self) -> int:
        shape, u, tp = self.shape, self.u, self.layout.tp
        heads = (2 * u * (shape.query + shape.key) + u * shape.key + EXACT * shape.heads) // tp
        if shape.head_norms:
            heads += (shape.query + shape.key) * (EXACT + self._norm_bytes - u) // tp
            heads += EXACT * (shape.heads + shape.key_heads) // tp
        return heads - u * shape.key // tp

    @property
    def _norm_bytes(self) -> int:
        """Bytes of a number in the normalized input that the backward needs."""
        return self.u if self.trained.lora_rank or self.row.on_cpu else 2 * self.u

    @property
    def _saved_of_mlp(self) -> int:
        shape, u = self.shape, self.u
        if not shape.experts:
            return 4 * u * shape.inner // self.layout.tp
        of_expert = u * shape.hidden + 4 * u * shape.expert_width
        return round(self._chosen * (self._received * of_expert + u * shape.hidden + 3 * 8)) + EXACT * shape.experts

    @property
    def _chosen(self) -> float:
        """Experts of a token that this rank sends it to: with ep_size each of tp_size sends its part of the tokens."""
        return self.shape.experts_per_token / (self.layout.tp if self.layout.ep > 1 else 1)

    @property
    def _received(self) -> float:
        return self.row.received if self.layout.ep > 1 else 1.0

    @property
    def saved_of_attention(self) -> int:
        """Of a layer, and its norms: what is left of it when its experts have their gradients."""
        return self.slice * self._saved_of_norms + self.tokens * self._saved_of_attention

    @property
    def _copies_experts(self) -> bool:
        """Whether their gradients are copied before they are reduced: of shards that cut another dimension than the first."""
        experts = [matrix for matrix in self.shape.layer_matrices() if matrix.second]
        return self.layout.ep == 1 and (self.layout.tp > 1 or any(map(self._is_cut_inside, experts)))

    def early_working(self) -> int:
        """Of a layer's backward: the gradients of the gated product's parts, and of the last matrix."""
        shape, u, tp = self.shape, self.u, self.layout.tp
        learns = not self.trained.lora_rank
        if not shape.experts:
            temporaries = 2 * u * shape.inner // tp + shape.hidden * u
            last = shape.inner * shape.hidden // tp
            return self.tokens * temporaries + (u * last if learns else 0)
        spread = self.layout.ep > 1
        widths = shape.hidden + (3 * shape.expert_width if spread else 4 * shape.expert_width // tp)
        last = shape.experts * shape.expert_width * shape.hidden // (self.layout.ep if spread else tp)
        # all their gradients, when the first product's are there: its own result and what came after it are gone
        freed = self.tokens * round(self._chosen * self._received * 2 * shape.expert_width * u)
        both = self.tokens * shape.hidden * u - freed + (3 * u * last if learns else 0)
        last *= 2 if self._copies_experts else 1
        of_product = self.tokens * (round(self._chosen * self._received * widths * u) + shape.hidden * u) + (u * last if learns else 0)
        again = self.forward_of_results if self.row.checkpointing else 0
        return max(of_product, both, self._backward_of_results, again)

    @property
    def _backward_of_results(self) -> int:
        """Of experts, before the product's backward. Gradients of their results: of their sum, in the experts' order, and of the
        weights in it; with ep_size the first two."""
        hidden, chosen = self.shape.hidden * self.u, self._chosen
        return self.tokens * (round((2 if self.layout.ep > 1 else 3) * chosen * hidden) + hidden)

    @property
    def forward_of_results(self) -> int:
        """With ep_size, before the results are sent back, which a layer saves. Four copies of received rows: as they came,
        multiplied, weighted, and in the order in which they came; the layer's sums."""
        if self.layout.ep == 1:
            return 0
        hidden = self.shape.hidden * self.u
        return self.tokens * (round((4 * self._received - 1) * self._chosen * hidden) + 2 * hidden)

    @property
    def backward_of_norm(self) -> int:
        """Of the last one, in float32: the gradient by the factor, and four of the mean of squares."""
        return 5 * EXACT * self.slice * self.shape.hidden

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

    def optimizing(self) -> int:
        """AdamW is one kernel over numbers in place; muon makes a matrix orthogonal in bfloat16."""
        if self.trained.optim != "muon":
            return 0
        return 4 * BF16 * max(m.numbers for m in self.shape.layer_matrices())
