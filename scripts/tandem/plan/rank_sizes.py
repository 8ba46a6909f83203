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

EXACT = 4  # bytes of float32: of norms, soft maxima and log-probs
BF16 = 2
BLOCK_OF_VOCABULARY, KEPT_LOGITS_BYTES = 4096, 2**26  # `trainer/modeling/logprobs.py`, on processors
BLOCK_OF_BACKWARD = 16384  # … and on GPUs


def sharded_numbers(shape: ModelShape, layout: Layout, trained: TrainedAs, *, learned: bool = False) -> tuple[int, int]:
    """Numbers that a collective of one layer carries, and that of embedding, head and last norm. `learned`: of a reduction."""
    parts = RankSizes(shape, layout, trained, TrainedRow(tokens=0, trained_tokens=0))
    if learned:
        return parts.layer.trained_padded, parts.root.trained_padded
    return parts.layer.padded, parts.root.padded


def published_bytes(shape: ModelShape, trained: TrainedAs) -> int:
    """Of one version: all parameters in their type, or the adapter."""
    if not trained.lora_rank:
        return BYTES[trained.dtype] * shape.numbers
    parts = RankSizes(shape, Layout(ranks=1), trained, TrainedRow(tokens=0, trained_tokens=0))
    return max(EXACT, BYTES[trained.dtype]) * shape.layers * parts.layer.trained_whole


@dataclass(frozen=True, slots=True)
class _Group:
    """Numbers of tensors that FSDP2 gathers and reduces together. `local`: of one rank. `whole`: put together, this rank's
    part by tp_size. `padded`: what the collective carries, whose tensors have a multiple of the shards as their first
    dimension."""

    local: int
    whole: int
    padded: int
    trained_local: int
    trained_whole: int
    trained_padded: int


class RankSizes:
    """The sizes that the moments are made of, in bytes unless they are numbers."""

    def __init__(self, shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow) -> None:
        self.shape, self.layout, self.trained, self.row = shape, layout, trained, row
        self.stored = BYTES[trained.dtype]
        self.u = BF16 if row.mixed else self.stored
        self.tokens = -(-row.tokens // layout.cp)
        self.slice = -(
            -self.tokens // layout.tp
        )  # of norms, sums and what layers keep (`trainer/modeling/sequence_parallel.py`)
        self.layer = self._group(shape.layer_matrices())
        self.root = self._group(shape.root_matrices())

    def _group(self, matrices: Sequence[Matrix]) -> _Group:
        base = [matrix for matrix in matrices if not (self._is_quantized and matrix.is_linear)]
        adapters = list(self._adapters(matrices)) if self.trained.lora_rank else []
        learned = adapters if self.trained.lora_rank else list(matrices)
        return _Group(*self._sizes([*base, *adapters]), *self._sizes(learned))

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
        shards = self.layout.shards
        local = sum(prod(_shard(*self._own(matrix), matrix.second, shards)) for matrix in matrices)
        is_sharded = shards > 1 or not self.row.on_cpu  # `shard_model` leaves the only rank of a CPU as it is
        return local, sum(prod(self._own(matrix)) for matrix in matrices), local * shards if is_sharded else 0

    def _own(self, matrix: Matrix) -> tuple[int, int]:
        """(rows, width) of this rank's part by tp_size."""
        tp = self.layout.tp
        return (
            -(-matrix.rows // tp) if matrix.cut == "rows" else matrix.rows,
            -(-matrix.width // tp) if matrix.cut == "columns" else matrix.width,
        )

    def states(self) -> RankMemory:
        """Weights and the optimizer's states, which are there all the time."""
        layers = self.shape.layers
        weights = self.stored * (layers * self.layer.local + self.root.local)
        if self._is_quantized:  # codes are buffers: every rank has all of them
            weights += layers * sum(nf4_bytes(m.numbers) for m in self.shape.layer_matrices() if m.is_linear)
        optimizer = layers * self._states_of(self.shape.layer_matrices(), in_layer=True)
        if not self.trained.lora_rank:
            optimizer += self._states_of(self.shape.root_matrices(), in_layer=False)
        if not self.row.optimizer_offload:
            return RankMemory(moment="between steps", weights=weights, optimizer=optimizer)
        gradients = self.stored * (layers * self.layer.trained_local + self.root.trained_local)
        return RankMemory(moment="between steps", weights=0, optimizer=0, host=weights + optimizer + gradients)

    def _states_of(self, matrices: Sequence[Matrix], *, in_layer: bool) -> int:
        learned = list(self._adapters(matrices)) if self.trained.lora_rank else matrices
        total = 0
        for matrix in learned:
            rows, width = _shard(*self._own(matrix), matrix.second, self.layout.shards)
            local = (rows, width) if width > 1 else (rows,)
            size = max(self.stored, EXACT) if self.trained.lora_rank else self.stored
            total += state_bytes(local, self.trained.optim, size, in_layer=in_layer)
        return total

    @property
    def root_gradient_bytes(self) -> int:
        """Of the head, from its backward to the embedding's: not reduced before."""
        return 0 if self.trained.lora_rank else self.u * self.shape.vocabulary * self.shape.hidden

    @property
    def reduced_of_layer(self) -> int:
        """This rank's gradients, which optimizer_offload moves to the host at once."""
        return 0 if self.row.optimizer_offload else self.layer.trained_local * self.stored

    @property
    def reduced_of_root(self) -> int:
        return 0 if self.row.optimizer_offload else self.root.trained_local * self.stored

    @property
    def input_of_layer(self) -> int:
        """What a checkpointed layer keeps."""
        return 0 if self.row.activation_offload else self.u * self.slice * self.shape.hidden

    @property
    def saved_of_head(self) -> int:
        """Last norm, hidden states of the trained tokens, embedding."""
        hidden, entries = self.shape.hidden, -(-self.row.trained_tokens // self.layout.cp)
        return self.slice * hidden * (EXACT + 2 * self.u) + entries * hidden * self.u

    @property
    def saved_of_layer(self) -> int:
        """What the backward of a layer needs, without activation_checkpointing. Norms keep their input in float32, the normalized
        input where their weight is trained, and what they give; SiLU its input; attention q, k, v, its result and the
        log-sum-exp. Experts keep whole rows."""
        norms = 2 * self.shape.hidden * (EXACT + self._norm_bytes) + 2 * EXACT
        of_experts = self.shape.hidden * self.u if self.shape.experts else 0
        of_slice = self.slice * (norms - of_experts)
        return of_slice + self.tokens * (self._saved_of_attention + self._saved_of_mlp + of_experts)

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
        chosen = shape.experts_per_token
        return chosen * (2 * u * shape.hidden + 4 * u * shape.expert_width + 3 * 8) + EXACT * shape.experts

    def early_working(self) -> int:
        """Of a layer's backward: the gradients of the gated product's parts, and of the last matrix."""
        shape, u, tp = self.shape, self.u, self.layout.tp
        learns = not self.trained.lora_rank
        if shape.experts:
            chosen = shape.experts_per_token
            temporaries = chosen * (shape.hidden + 4 * shape.expert_width // tp) * u + shape.hidden * u
            last = 2 * shape.experts * shape.expert_width * shape.hidden // tp  # and a copy
        else:
            temporaries = 2 * u * shape.inner // tp + shape.hidden * u
            last = shape.inner * shape.hidden // tp
        return self.tokens * temporaries + (u * last if learns else 0)

    def logits(self) -> int:
        """`trainer/modeling/logprobs.py`: three chunks of the forward, or in the backward the gradient of a trained head, a
        block of it in float32 twice, its sum and a chunk's, and the hidden states' in float32."""
        vocabulary, hidden, u = self.shape.vocabulary, self.shape.hidden, self.u
        entries = -(-self.row.trained_tokens // self.layout.cp)
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


def _shard(rows: int, width: int, second: int, shards: int) -> tuple[int, int]:
    """(rows, width) of a shard: of three dimensions another than the first, where that is even
    (`trainer/process/expert_sharding.py`)."""
    divides = second and rows % shards and (second % shards == 0 or width // second % shards == 0)
    return (rows, width // shards) if divides else (-(-rows // shards), width)
