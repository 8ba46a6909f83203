"""Seconds of a trainer's row and of an engine's step on GPUs: the operations and bytes that they need, by what a GPU can do.

    a row          products 2 operations a parameter and token forward, as many for each of two gradients, and once more with
                   activation_checkpointing; attention 4 x the width of the queries for each pair that sees each other, and
                   2.5 times that backward (arXiv 2307.08691, section 3.2); the head for trained tokens alone
    collectives    each layer's parameters are gathered twice, while others compute; those of tp_size, cp_size and ep_size, and
                   messages between stages, interrupt it
    stages         of m rows and p stages m + p - 1 rows of the slowest one: (p - 1) / (m + p - 1) of the time is idle
    once a step    gradients reduced, the optimizer
    decoding       all weights read once, and the keys and values of each sequence

`TRAINING` is measured: one H200 took 0.506 s and 0.651 s for rows of 25,536 tokens (docs/run/gpus.md), 21 % of its peak.
`LINKS` and
`DECODING_SHARE` are assumptions: neither several GPUs nor an engine on one was measured. So seconds may
be wrong by a factor of two; what decides between layouts is their ratio.
"""

from dataclasses import dataclass

from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.devices import Device
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from tandem.plan.rank_parameters import BF16, EXACT, RankParameters

TRAINING = 0.21  # of a GPU's peak, measured on an H200
LINKS = 0.7  # of a link's published bandwidth, assumed
DECODING_SHARE = 0.6  # of the memory's published bandwidth, assumed
LATENCY_S = 20e-6  # of a collective, assumed
HOST_BANDWIDTH = 50e9  # bytes a second of a host's memory for each GPU's optimizer, assumed
OPTIMIZER_BYTES = 28  # a number: AdamW reads weight, gradient and two moments, and writes three of them
MOST_SEQUENCES = 256  # of an engine at once
ENGINE_RESERVE = 2 * 2**30  # bytes of an engine on each GPU: activations, graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTime:
    """Seconds of one row on every rank, of the slowest stage."""

    compute: float
    gather: float  # beside `compute`
    lines: float  # of tp_size, cp_size, ep_size and pp_size

    @property
    def total(self) -> float:
        return max(self.compute, self.gather) + self.lines


def row_flops(shape: ModelShape, trained: TrainedAs, row: TrainedRow, pairs: float | None = None) -> float:
    """Operations of one row, forward and backward. `pairs`: that see each other; of a chain by default."""
    return shape.layers * _layer_flops(shape, trained, row, pairs) + _head_flops(shape, trained, row)


def _layer_flops(shape: ModelShape, trained: TrainedAs, row: TrainedRow, pairs: float | None = None) -> float:
    pairs = row.tokens * (row.tokens + 1) / 2 if pairs is None else pairs
    again, full = int(row.checkpointing), not trained.lora_rank
    used = (shape.used_numbers - shape.vocabulary * shape.hidden) / shape.layers
    return (2 + 2 + 2 * full + 2 * again) * used * row.tokens + (1 + 2.5 + again) * 4 * shape.query * pairs


def _head_flops(shape: ModelShape, trained: TrainedAs, row: TrainedRow) -> float:
    return float((6 + 2 * (not trained.lora_rank)) * shape.vocabulary * shape.hidden * row.trained_tokens)


def row_time(
    shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, device: Device, machine_gpus: int
) -> RowTime:
    """`machine_gpus`: of the trainer on each machine; what travels further takes the network."""
    stages = (
        RankParameters(shape, layout, trained, row, stage) for stage in sorted({0, layout.pp // 2, layout.pp - 1})
    )
    return max((_of_stage(parts, device, machine_gpus) for parts in stages), key=lambda one: one.total)


def _of_stage(parts: RankParameters, device: Device, machine_gpus: int) -> RowTime:
    shape, layout, trained, row = parts.shape, parts.layout, parts.trained, parts.row
    flops = parts.layers * _layer_flops(shape, trained, row) + parts.is_last * _head_flops(shape, trained, row)
    gathered = 2 * parts.layers * parts.u * (_sent(parts.layer.padded, layout.shards) + _sent_experts(parts))
    if row.reduces_each:
        gathered += _reduced(parts)
    return RowTime(
        compute=flops / (layout.tp * layout.cp) / (device.flops * TRAINING),
        gather=gathered / _speed(device, layout.stage_ranks, machine_gpus),
        lines=_lines(parts, device, machine_gpus),
    )


def _sent(numbers: float, shards: int) -> float:
    return numbers * (shards - 1) / shards


def _sent_experts(parts: RankParameters) -> float:
    return _sent(parts.experts.padded, parts.layout.expert_shards)


def _reduced(parts: RankParameters) -> float:
    """Bytes of all gradients, in float32."""
    own = parts.layers * parts.layer.trained_padded + parts.root.trained_padded
    experts = _sent(parts.layers * parts.experts.trained_padded, parts.layout.expert_shards)
    return EXACT * (_sent(own, parts.layout.shards) + experts)


def _lines(parts: RankParameters, device: Device, machine_gpus: int) -> float:
    shape, layout, row, u = parts.shape, parts.layout, parts.row, parts.u
    tokens, passes = row.tokens / layout.cp, 3 if row.checkpointing else 2
    times, seconds = passes * parts.layers, 0.0
    if layout.tp > 1:
        moved = _sent(tokens * shape.hidden * u, layout.tp)
        collectives = parts.layers * _row_collectives(shape, layout, passes)
        seconds += collectives * (moved / _speed(device, layout.tp, machine_gpus) + LATENCY_S)
    if layout.cp > 1:  # queries, keys and values there, the result back
        moved = _sent(tokens * (2 * shape.query + 2 * shape.key) / layout.tp * u, layout.cp)
        seconds += times * (moved / _speed(device, layout.tp * layout.cp, machine_gpus) + 2 * LATENCY_S)
    if layout.ep > 1:  # numbers of tokens, each token to its experts, and the results back
        moved = 2 * _sent(tokens / layout.tp * shape.experts_per_token * shape.hidden * u, layout.ep)
        seconds += times * (moved / _speed(device, layout.ep, machine_gpus) + 3 * LATENCY_S)
    if layout.pp > 1:  # hidden states to the next stage, their gradient back
        moved = 2 * tokens * shape.hidden * u
        seconds += moved / _speed(device, 2 * layout.stage_ranks, machine_gpus) + 2 * LATENCY_S
    return seconds


def _row_collectives(shape: ModelShape, layout: Layout, passes: int) -> int:
    """In which a layer's hidden states pass a line of tp_size: around a block gathered and scattered in each pass, and gathered
    once more in the backward (`trainer/modeling/row_slices.py`). Experts compute slices with ep_size; without it their results,
    or the gradients of their rows, are gathered, summed and sliced."""
    of_block = 2 * passes + 1
    if not shape.experts:
        return 2 * of_block
    return of_block + (0 if layout.ep > 1 else 3 * passes)


def idle_share(layout: Layout, rows: int) -> float:
    """Of a step, in which a rank waits for other stages."""
    return (layout.pp - 1) / (rows + layout.pp - 1)


def step_extra_s(
    shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, device: Device, machine_gpus: int
) -> float:
    """Once a step: gradients reduced, unless they were after each row; the optimizer. Of the stage with most parameters."""
    every = (RankParameters(shape, layout, trained, row, stage) for stage in sorted({0, layout.pp // 2, layout.pp - 1}))
    parts = max(every, key=lambda one: one.reduced_numbers)
    reduced = 0.0 if row.reduces_each else _reduced(parts) / _speed(device, layout.stage_ranks, machine_gpus)
    bandwidth = HOST_BANDWIDTH if row.optimizer_offload else device.bandwidth
    return reduced + OPTIMIZER_BYTES * parts.reduced_numbers / bandwidth


def _speed(device: Device, size: int, machine_gpus: int) -> float:
    """Bytes a second of a ring of `size` GPUs."""
    return LINKS * (device.link if size <= machine_gpus else device.network)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """An engine over `gpus`. `sequences`: of the whole context at once, by its memory, at most `MOST_SEQUENCES`."""

    gpus: int
    weights: int  # bytes on each
    token: int  # bytes of a token's keys and values on each
    sequences: int
    step_s: float  # of one token for each sequence, at half of the context

    @property
    def tokens_per_s(self) -> float:
        return self.sequences / self.step_s if self.sequences else 0.0


def engine_speed(shape: ModelShape, gpus: int, context: int, room: float, device: Device) -> EngineSpeed:
    """bfloat16, tensor parallel. `room`: bytes that it may take on each GPU."""
    weights = BF16 * shape.numbers // gpus
    token = 2 * BF16 * shape.layers * max(shape.key_heads // gpus, 1) * shape.head_width
    fitting = int((room - weights - ENGINE_RESERVE) / (token * context))
    sequences = max(0, min(MOST_SEQUENCES, fitting))
    read = BF16 * _read_numbers(shape, sequences) / gpus + sequences * context / 2 * token
    computed = 2 * shape.used_numbers * sequences / gpus / device.flops
    sums = 2 * shape.layers * LATENCY_S if gpus > 1 else 0.0
    step_s = max(read / device.bandwidth, computed) / DECODING_SHARE + sums
    return EngineSpeed(gpus=gpus, weights=weights, token=token, sequences=sequences, step_s=step_s)


def _read_numbers(shape: ModelShape, sequences: int) -> float:
    """Of a mixture the experts that any of the sequences chooses, if each is chosen as often."""
    if not shape.experts:
        return shape.numbers
    chosen = 1 - (1 - shape.experts_per_token / shape.experts) ** max(sequences, 1)
    experts = shape.layers * shape.experts * 3 * shape.expert_width * shape.hidden
    return shape.numbers - (1 - chosen) * experts
