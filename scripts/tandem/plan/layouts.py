"""The layouts of a trainer and its engines over the GPUs of some machines that fit, and the fastest of them.

    apart   a part of each machine's GPUs trains, the others are engines: the slower of the two decides
    turns   all GPUs train, and sample, by turns: their times add up, and states move to the host and back

Tried are every tp_size within a machine, every cp_size that the model's heads divide, every ep_size that its experts divide,
and every pp_size whose stages are whole machines, with and without activation_checkpointing; with reduce_each_row where whole
gradients do not fit, and with optimizer_offload where nothing else fits. What is given stays. Of layouts within 3 % of the
fastest the simplest is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from shared.errors import ConfigError
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.devices import Device
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, RankMemory, TrainedRow
from tandem.plan.rank_memory import peak
from tandem.plan.roofline import EngineSpeed, engine_speed, row_time, step_extra_s

USABLE = 0.91  # of a GPU's memory: CUDA's context, NCCL, what the allocator loses (docs/run/gpus.md: 72 of 79 GiB)
TURNS_SHARE = 0.75  # of it for an engine by turns, as the launcher gives SGLang
STATES_TO_HOST, STATES_BACK = 4.5 / 3.0 * 2**30, 4.5 / 0.7 * 2**30  # bytes a second, measured on an H200
HOST_GIB = 2048.0  # of a machine's own memory, as in NVIDIA's DGX H100
CLOSE = 0.97  # of the fastest layout's speed
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`gpus` on each of `machines`. `memory`: usable bytes of one; `host`: bytes of a machine's main memory."""

    device: Device
    machines: int
    gpus: int
    memory: float
    host: float = HOST_GIB * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is trained: the largest row, and the episodes of a step, each of which is counted as one such row (prefixes that
    they share make it less)."""

    shape: ModelShape
    trained: TrainedAs
    row: TrainedRow
    episodes: int

    @property
    def sampled(self) -> int:
        """Tokens of a step."""
        return self.episodes * self.row.trained_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Settings that stay; None: to be proposed."""

    turns: bool | None = None
    trainer_gpus: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    ep: int | None = None
    reduces_each: bool | None = None
    checkpointing: bool | None = None
    offload: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """One layout and what it comes to. `trainer_gpus`: of each machine."""

    turns: bool
    trainer_gpus: int
    layout: Layout
    row: TrainedRow
    memory: RankMemory
    engine: EngineSpeed
    engines: int  # of each machine
    sampling_s: float
    learning_s: float  # with what a step has once
    moving_s: float  # of states, by turns
    fleet: Fleet

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.fleet.memory and self.engine.sequences > 0 and self.host <= self.fleet.host

    @property
    def lacking(self) -> tuple[float, ...]:
        """What a layout that does not fit is compared by: an engine that holds nothing, bytes of a GPU, of the host, seconds."""
        over = max(0.0, self.memory.total - self.fleet.memory), max(0.0, self.host - self.fleet.host)
        return (float(self.engine.sequences == 0), *over, self.step_s)

    @property
    def host(self) -> int:
        """Bytes of each machine's own memory: the states of its ranks, always or while the engines have the GPUs."""
        held = self.memory.weights + self.memory.optimizer if self.turns else 0
        return self.trainer_gpus * (self.memory.host or held)

    @property
    def step_s(self) -> float:
        if self.turns:
            return self.sampling_s + self.learning_s + self.moving_s
        return max(self.sampling_s, self.learning_s)

    @property
    def complexity(self) -> int:
        """The number of settings that differ from the default."""
        row, layout = self.row, self.layout
        sizes = sum(size > 1 for size in (layout.tp, layout.cp, layout.pp, layout.ep))
        return sizes + sum((row.checkpointing, row.reduces_each, 2 * row.optimizer_offload, self.turns))


def best(fleet: Fleet, work: Work, given: Given) -> GpuPlan:
    """The simplest of the fastest that fit; where none fits the one that lacks least. Raises ConfigError where there is none."""
    every = list(plans(fleet, work, given))
    if not every:
        raise ConfigError(
            f"no layout of {work.shape.name} over {fleet.gpus} GPUs of a machine is as the options say; expected a tp_size that "
            f"divides {work.shape.key_heads} key heads and the trainer's GPUs, an ep_size that divides {work.shape.experts} "
            f"experts, a pp_size that divides the GPUs and is at most {work.shape.layers} layers, and fewer GPUs in --trainer "
            "than there are"
        )
    fitting = [plan for plan in every if plan.fits]
    if not fitting:
        return min(every, key=lambda plan: plan.lacking)
    fastest = min(plan.step_s for plan in fitting)
    close = [plan for plan in fitting if CLOSE * plan.step_s <= fastest]
    return min(close, key=lambda plan: (plan.complexity, plan.step_s))


def plans(fleet: Fleet, work: Work, given: Given) -> Iterator[GpuPlan]:
    """Every layout that the model's heads and experts allow; with optimizer_offload only where none without it fits."""
    for offload in (False, True) if given.offload is None else (given.offload,):
        tried = [
            plan
            for turns in _either(given.turns)
            for plan in _of_mode(fleet, work, given, turns=turns, offload=offload)
        ]
        yield from tried
        if any(plan.fits for plan in tried):
            return


def _either(value: bool | None) -> tuple[bool, ...]:
    return (False, True) if value is None else (value,)


def _of_mode(fleet: Fleet, work: Work, given: Given, *, turns: bool, offload: bool) -> Iterator[GpuPlan]:
    counts = [fleet.gpus] if turns else [n for n in range(1, fleet.gpus) if given.trainer_gpus in (None, n)]
    for count in counts:
        engine, engines = _engine(fleet, work, fleet.gpus if turns else fleet.gpus - count, turns=turns)
        for layout in _layouts(work.shape, fleet.machines, count, given):
            rows = -(-work.episodes // layout.data)
            for checkpointing in _either(given.checkpointing):
                row = replace(work.row, rows=rows, checkpointing=checkpointing, optimizer_offload=offload)
                row = replace(row, reduces_each=bool(given.reduces_each))
                plan = _plan(fleet, work, row, layout, count, engine, engines, turns=turns)
                yield plan
                if given.reduces_each is None and rows > 1 and plan.memory.total > fleet.memory:
                    yield _plan(
                        fleet, work, replace(row, reduces_each=True), layout, count, engine, engines, turns=turns
                    )


# 8 parameters: a plan's parts, which the loops above have
def _plan(
    fleet: Fleet,
    work: Work,
    row: TrainedRow,
    layout: Layout,
    count: int,
    engine: EngineSpeed,
    engines: int,
    *,
    turns: bool,
) -> GpuPlan:
    shape, trained, device = work.shape, work.trained, fleet.device
    memory = peak(shape, layout, trained, row)
    learning_s = (row.rows + layout.pp - 1) * row_time(shape, layout, trained, row, device, count).total
    learning_s += step_extra_s(shape, layout, trained, row, device, count)
    sampling_s = float("inf")
    if engine.sequences:
        sampling_s = work.sampled / (engines * fleet.machines * engine.tokens_per_s)
    states = 0 if row.optimizer_offload else memory.weights + memory.optimizer
    moving_s = states / STATES_TO_HOST + states / STATES_BACK if turns else 0.0
    return GpuPlan(
        turns=turns, trainer_gpus=count, layout=layout, row=row, memory=memory, engine=engine, engines=engines,
        sampling_s=sampling_s, learning_s=learning_s, moving_s=moving_s,
        fleet=fleet,
    )  # fmt: skip


def _layouts(shape: ModelShape, machines: int, machine_gpus: int, given: Given) -> Iterator[Layout]:
    ranks = machines * machine_gpus
    for tp, cp, pp, ep in product(
        _sizes(8, given.tp), _sizes(32, given.cp), _stages(shape, machines, given), _sizes(shape.experts or 1, given.ep)
    ):
        stage, left_over = divmod(ranks, pp)
        if left_over or stage % (tp * cp) or stage % ep or machine_gpus % tp:
            continue
        if shape.heads % (tp * cp) or shape.key_heads % tp:
            continue
        if shape.experts % ep or (ep == 1 and shape.experts % tp) or (ep > 1 and not shape.experts):
            continue
        yield Layout(ranks=ranks, tp=tp, cp=cp, pp=pp, ep=ep)


def _sizes(most: int, given: int | None) -> list[int]:
    return [2**power for power in range(most.bit_length())] if given is None else [given]


def _stages(shape: ModelShape, machines: int, given: Given) -> list[int]:
    """Of whole machines: only hidden states pass between stages."""
    if given.pp is not None:
        return [given.pp] if given.pp <= shape.layers else []
    return [size for size in _sizes(min(machines, shape.layers), None) if machines % size == 0]


def _engine(fleet: Fleet, work: Work, gpus: int, *, turns: bool) -> tuple[EngineSpeed, int]:
    """The engines of one machine's `gpus` that sample most, and their number."""
    room = TURNS_SHARE * fleet.memory / USABLE if turns else fleet.memory
    sizes = [size for size in (1, 2, 4, 8) if size <= gpus and work.shape.heads % size == 0]
    context = work.row.tokens
    tried = [(engine_speed(work.shape, size, context, room, fleet.device), gpus // size) for size in sizes]
    return max(tried, key=lambda one: one[0].tokens_per_s * one[1])


def why_none(plan: GpuPlan) -> str:
    """What keeps the closest layout from fitting."""
    fleet, remedy = plan.fleet, "more GPUs, a shorter --context, --lora_rank, or a smaller model"
    if plan.memory.total > fleet.memory:
        held = f"a rank holds {plan.memory.total / GIB:,.1f} GiB at the {plan.memory.moment}"
        return f"{held}, of {fleet.memory / GIB:,.1f}: {remedy}"
    if plan.host > fleet.host:
        held = f"the states take {plan.host / GIB:,.0f} GiB of a machine's own memory"
        return f"{held}, of {fleet.host / GIB:,.0f} (--host_memory): {remedy}"
    return "an engine's GPUs do not hold its weights and one sequence: a shorter --context, more memory, or a smaller model"
