"""What a rank stores of a model's parameters: weights, the optimizer's states, gradients, and what is gathered of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

from tandem.launch.trainer_memory import BYTES, TrainedAs, nf4_bytes, state_bytes
from tandem.plan.matrix_cuts import MatrixCuts
from tandem.plan.models import Matrix, ModelShape
from tandem.plan.planned_rank import Layout, RankMemory, TrainedRow
from tandem.plan.stages import layers_of_stages

EXACT = 4  # bytes of float32: of norms, soft maxima and log-probs
BF16 = 2


def published_bytes(shape: ModelShape, trained: TrainedAs) -> int:
    """Of one version: all parameters in their type, or the adapter."""
    if not trained.lora_rank:
        return BYTES[trained.dtype] * shape.numbers
    stored = _stored(shape, Layout(ranks=1), trained, 0, is_sharded=True)
    return max(EXACT, BYTES[trained.dtype]) * shape.layers * stored.layer.trained_whole


def computing_bytes(trained: TrainedAs, row: TrainedRow) -> int:
    """Of a number of the type in which layers compute: 2 with mixed_precision bf16."""
    return BF16 if row.mixed else BYTES[trained.dtype]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Of one stage. `experts`: those that are gathered apart from the rest of their layer. `weights`, `optimizer`: bytes."""

    layers: int
    layer: SizesOfGroup
    experts: SizesOfGroup
    root: SizesOfGroup
    weights: int
    optimizer: int


class RankParameters:
    """In bytes unless they are numbers. `stage`: one of `layout.pp`. It has `layers`, and the embedding if it is the first, the
    head if it is the last."""

    def __init__(self, shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, stage: int = 0) -> None:
        self.shape, self.layout, self.trained, self.row = shape, layout, trained, row
        self.stored, self.u = BYTES[trained.dtype], computing_bytes(trained, row)
        self.is_first, self.is_last = stage == 0, stage == layout.pp - 1
        # `shard_model` leaves the only rank of a CPU as it is
        is_sharded = layout.stage_ranks > 1 or not row.on_cpu
        self._sizes = _stored(shape, replace(layout, cp=1), trained, stage, is_sharded=is_sharded)
        self.layers, self.layer = self._sizes.layers, self._sizes.layer
        self.experts, self.root = self._sizes.experts, self._sizes.root

    def states(self) -> RankMemory:
        """Weights and the optimizer's states, which are there all the time."""
        weights, optimizer = self._sizes.weights, self._sizes.optimizer
        if not self.row.optimizer_offload:
            return RankMemory(moment="between steps", weights=weights, optimizer=optimizer)
        gradients = self.stored * self.reduced_numbers
        return RankMemory(moment="between steps", weights=0, optimizer=0, host=weights + optimizer + gradients)

    @property
    def reduced_numbers(self) -> int:
        """Of this rank's gradients."""
        return self.layers * (self.layer.trained_local + self.experts.trained_local) + self.root.trained_local

    @property
    def cast_of_root(self) -> int:
        """This rank's part, in the type of the all-gather."""
        return self.root.local * self.u if self.u != self.stored else 0

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
    def reduced_of_root(self) -> int:
        return 0 if self.row.optimizer_offload else self.root.trained_local * self.stored

    @property
    def unreduced_of_layer(self) -> int:
        """Whole gradients, which the rows before the last one leave for it; in float32 if layers compute in another type."""
        return self._unreduced(self.layer.trained_whole + self.experts.trained_whole)

    @property
    def unreduced_of_root(self) -> int:
        return self._unreduced(self.root.trained_whole)

    def _unreduced(self, numbers: int) -> int:
        return 0 if self.row.reduces_each else numbers * (EXACT if self.row.mixed else self.stored)

    def reducing(self, group: SizesOfGroup) -> int:
        """The input of a reduce-scatter in float32; gloo reduces all of a copy, and takes its part of that."""
        return group.trained_padded * EXACT * (2 if self.row.on_cpu else 1)

    def optimizing(self) -> int:
        """AdamW is one kernel over numbers in place; muon makes a matrix orthogonal in bfloat16."""
        if self.trained.optim != "muon":
            return 0
        return 4 * BF16 * max(m.numbers for m in self.shape.layer_matrices())


@cache  # a plan tries the same cut with other slices of a row, and other settings
def _stored(shape: ModelShape, layout: Layout, trained: TrainedAs, stage: int, *, is_sharded: bool) -> _Stored:
    cuts, layers = MatrixCuts(layout), layers_of_stages(shape, layout.pp, learned=not trained.lora_rank)[stage]
    of_layer = shape.layer_matrices()
    of_root = shape.root_matrices(first=stage == 0, last=stage == layout.pp - 1)
    layer, experts, root = (
        _group(cuts, matrices, trained, is_sharded=is_sharded)
        for matrices in (
            [matrix for matrix in of_layer if not cuts.is_spread(matrix)],
            [matrix for matrix in of_layer if cuts.is_spread(matrix)],
            of_root,
        )
    )
    weights = BYTES[trained.dtype] * (layers * (layer.local + experts.local) + root.local)
    if _is_quantized(trained):  # codes are buffers: every rank has all of them
        weights += layers * sum(nf4_bytes(m.numbers) for m in of_layer if m.is_linear)
    optimizer = layers * _states_of(cuts, of_layer, trained, in_layer=True)
    if not trained.lora_rank:
        optimizer += _states_of(cuts, of_root, trained, in_layer=False)
    return _Stored(layers=layers, layer=layer, experts=experts, root=root, weights=weights, optimizer=optimizer)


def _is_quantized(trained: TrainedAs) -> bool:
    return trained.base_quantization == "nf4" and trained.lora_rank > 0


def _group(cuts: MatrixCuts, matrices: Sequence[Matrix], trained: TrainedAs, *, is_sharded: bool) -> SizesOfGroup:
    base = [matrix for matrix in matrices if not (_is_quantized(trained) and matrix.is_linear)]
    adapters = list(_adapters(matrices, trained.lora_rank)) if trained.lora_rank else []
    learned = adapters if trained.lora_rank else list(matrices)
    every = _numbers(cuts, [*base, *adapters], is_sharded=is_sharded)
    return SizesOfGroup(*every, *_numbers(cuts, learned, is_sharded=is_sharded))


def _adapters(matrices: Sequence[Matrix], rank: int) -> Iterator[Matrix]:
    for matrix in matrices:
        if matrix.is_linear:
            yield Matrix(rank, matrix.width, "columns" if matrix.cut == "columns" else "none")
            yield Matrix(matrix.rows, rank, "rows" if matrix.cut == "rows" else "none")


def _numbers(cuts: MatrixCuts, matrices: Sequence[Matrix], *, is_sharded: bool) -> tuple[int, int, int]:
    """Local, whole, padded."""
    shards = [prod(cuts.shard(matrix)) for matrix in matrices]
    padded = sum(local * cuts.shards(matrix) for local, matrix in zip(shards, matrices, strict=True))
    return sum(shards), sum(prod(cuts.part(matrix)) for matrix in matrices), padded if is_sharded else 0


def _states_of(cuts: MatrixCuts, matrices: Sequence[Matrix], trained: TrainedAs, *, in_layer: bool) -> int:
    learned = list(_adapters(matrices, trained.lora_rank)) if trained.lora_rank else matrices
    stored = BYTES[trained.dtype]
    size, total = max(stored, EXACT) if trained.lora_rank else stored, 0
    for matrix in learned:
        rows, width = cuts.shard(matrix)
        total += state_bytes((rows, width) if width > 1 else (rows,), trained.optim, size, in_layer=in_layer)
    return total
