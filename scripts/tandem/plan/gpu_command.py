"""A plan for GPUs that are not here: `tandem plan MODEL --gpus N`, with MODEL a folder with config.json or a known name.

    tandem plan Qwen3-8B --gpus 16 --gpu h100 --context 32768                       two machines of 8: a table, then settings
    tandem plan Qwen3-8B --gpus 16 --gpu h100 --context 32768 > plan.yml            for `tandem run … --config plan.yml`

Its comments say what a rank holds, by part and at the moment of its peak, and how long a step takes; the settings are for the
machine with number 0, and the same on all others.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from shared.documents.step_cost import spoken
from shared.errors import ConfigError
from tandem.launch.trainer_memory import BYTES, OPTIMIZERS, TrainedAs
from tandem.plan.devices import DEVICES, device_of
from tandem.plan.layouts import GIB, HOST_GIB, USABLE, Fleet, Given, GpuPlan, Work, best, why_none
from tandem.plan.models import KNOWN, ModelShape, shape_of
from tandem.plan.planned_rank import LOGPROB_CHUNK, PARTS, RankMemory, TrainedRow
from tandem.plan.rank_memory import peak
from tandem.plan.rank_parameters import published_bytes
from tandem.plan.roofline import idle_share
from tandem.plan.stages import layers_of_stages

MACHINE_GPUS = 8  # of one machine, unless --nodes says otherwise


def is_gpu_plan(words: Sequence[str]) -> bool:
    """Whether `--gpus` has a number: `tandem run` has a setting of that name, which is JSON."""
    values = [after for word, after in zip(words, [*words[1:], ""], strict=True) if word == "--gpus"]
    values += [word.removeprefix("--gpus=") for word in words if word.startswith("--gpus=")]
    return any(value.isdigit() for value in values)


def gpu_plan(words: Sequence[str]) -> None:
    """Prints it. Raises ConfigError."""
    options = _parser().parse_args(words)
    sys.stdout.write("".join(f"{line}\n" for line in _lines(options)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help=f"a folder with config.json, or one of {', '.join(KNOWN)}")
    parser.add_argument("--gpus", type=_count, required=True, help="of all machines")
    parser.add_argument("--nodes", type=_count, help="machines; by default as few as hold 8 each")
    parser.add_argument("--gpu", choices=DEVICES, default="h100", help="their kind")
    parser.add_argument("--memory", type=float, help="GiB of one of them, instead of its kind's")
    parser.add_argument("--host_memory", type=float, default=HOST_GIB, help="GiB of main memory of each machine")
    parser.add_argument("--context", type=_count, default=32768, help="tokens of the longest episode, and of a row")
    parser.add_argument(
        "--trained_share", type=float, default=0.5, help="of a row's tokens that are sampled, and trained"
    )
    parser.add_argument("--episodes", type=_count, default=128, help="of a step")
    parser.add_argument("--optim", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--lora_rank", type=int, default=0, help="0: all parameters are trained")
    parser.add_argument("--base_quantization", choices=("none", "nf4"), default="none")
    parser.add_argument("--logprob_chunk", type=_count, default=LOGPROB_CHUNK)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--turns", action="store_true", help="trainer and engines by turns on the same GPUs")
    mode.add_argument("--trainer", type=_count, help="GPUs of each machine that train; the others are engines")
    for name in ("tp_size", "cp_size", "pp_size", "ep_size"):
        parser.add_argument(f"--{name}", type=_count)
    for name in ("activation_checkpointing", "reduce_each_row", "optimizer_offload"):
        parser.add_argument(f"--{name}", type=_switch, metavar="true|false")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}; expected 1 or more")
    return value


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text}; expected true or false")
    return text == "true"


def _lines(options: argparse.Namespace) -> Iterator[str]:
    shape, fleet = shape_of(options.model), _fleet(options)
    work, given = _work(options, shape), _given(options)
    plan = best(fleet, work, given)
    used = f"{shape.used_numbers / 1e9:,.2f} of them for a token"
    yield f"# model     {shape.name}: {shape.numbers / 1e9:,.2f} billion parameters, {used}"
    yield (
        f"# machines  {fleet.machines} x {fleet.gpus} {fleet.device.name.upper()}, {fleet.memory / USABLE / GIB:,.1f} GiB each, "
        f"{fleet.memory / GIB:,.1f} for use"
    )
    yield f"# trainer   {_trainer_text(plan)}"
    yield f"# engines   {_engines_text(fleet, plan)}"
    yield f"# memory    {_memory_text(plan.memory)}"
    for stage in range(plan.layout.pp) if plan.layout.pp > 1 else ():
        memory = peak(work.shape, plan.layout, work.trained, plan.row, stage)
        layers = layers_of_stages(work.shape, plan.layout.pp, learned=not work.trained.lora_rank)[stage]
        yield f"# stage {stage:<3} {layers} layers, {_memory_text(memory)}"
    if plan.host:
        when = "parameters, gradients, states" if plan.memory.host else "states, while the engines sample"
        yield f"# host      {plan.host / GIB:,.1f} GiB of each machine's own memory: {when}"
    yield f"# step      {_step_text(work, plan)}"
    yield f"# version   {_version_text(work)}"
    if not plan.fits:
        yield f"# DOES NOT FIT: {why_none(plan)}"
    yield from _to_start(options, fleet)
    yield from yaml.safe_dump(_settings(work, plan), sort_keys=False, default_flow_style=None).splitlines()


def _fleet(options: argparse.Namespace) -> Fleet:
    machines = options.nodes or -(-options.gpus // MACHINE_GPUS)
    if options.gpus % machines:
        raise ConfigError(f"gpus is {options.gpus}; expected a multiple of the {machines} machines")
    device = device_of(options.gpu)
    memory = USABLE * GIB * (options.memory or device.memory_gib)
    host = GIB * options.host_memory
    return Fleet(device=device, machines=machines, gpus=options.gpus // machines, memory=memory, host=host)


def _work(options: argparse.Namespace, shape: ModelShape) -> Work:
    trained = TrainedAs(
        optim=options.optim,
        dtype=options.dtype,
        lora_rank=options.lora_rank,
        base_quantization=options.base_quantization,
    )
    sampled = max(1, round(options.context * options.trained_share))
    row = TrainedRow(
        tokens=options.context,
        trained_tokens=sampled,
        logprob_chunk=options.logprob_chunk,
        mixed=options.dtype == "float32",
    )
    return Work(shape=shape, trained=trained, row=row, episodes=options.episodes)


def _given(options: argparse.Namespace) -> Given:
    turns = True if options.turns else False if options.trainer else None
    return Given(
        turns=turns, trainer_gpus=options.trainer, tp=options.tp_size, cp=options.cp_size, pp=options.pp_size,
        ep=options.ep_size, checkpointing=options.activation_checkpointing, reduces_each=options.reduce_each_row,
        offload=options.optimizer_offload,
    )  # fmt: skip


def _trainer_text(plan: GpuPlan) -> str:
    layout = plan.layout
    sizes = "".join(f" x {name} {size}" for name, size in (("tp_size", layout.tp), ("cp_size", layout.cp)))
    sizes += f" x pp_size {layout.pp}" if layout.pp > 1 else ""
    experts = f", experts over ep_size {layout.ep}" if layout.ep > 1 else ""
    return (
        f"{layout.ranks} x 1 GPU, {plan.trainer_gpus} of each machine: {layout.data} parts of the data{sizes}{experts}"
    )


def _engines_text(fleet: Fleet, plan: GpuPlan) -> str:
    engine, count = plan.engine, plan.engines * fleet.machines
    turns = ", by turns with the trainer" if plan.turns else ""
    return (
        f"{count} x {engine.gpus} GPUs{turns}: {engine.weights / GIB:,.1f} GiB of weights a GPU, {engine.sequences} sequences of "
        "the whole context at once"
    )


def _memory_text(memory: RankMemory) -> str:
    sizes = {name: getattr(memory, name) for name in PARTS}
    parts = ", ".join(f"{name} {size / GIB:,.1f}" for name, size in sizes.items() if size > GIB / 20)
    return f"{memory.total / GIB:,.1f} GiB of a rank at most, at the {memory.moment}: {parts}"


def _step_text(work: Work, plan: GpuPlan) -> str:
    tokens = work.episodes * work.row.tokens
    moving = f", moving {spoken(plan.moving_s)}" if plan.turns else ""
    if plan.layout.pp > 1:
        moving += f", {idle_share(plan.layout, plan.row.rows):.0%} of it idle stages"
    sampling = spoken(plan.sampling_s) if plan.engine.sequences else "never"
    return (
        f"{work.episodes} episodes of {work.row.tokens:,} tokens: sampling {sampling} "
        f"({work.sampled / plan.sampling_s:,.0f} tokens/s), learning {spoken(plan.learning_s)} "
        f"({tokens / plan.learning_s:,.0f} tokens/s){moving}; by roofline, within a factor of two"
    )


def _version_text(work: Work) -> str:
    size = published_bytes(work.shape, work.trained)
    if work.trained.lora_rank:
        merged = BYTES["bfloat16"] * work.shape.numbers / GIB
        return f"{size / GIB:,.2f} GiB, the adapter (publish_mode adapter); {merged:,.1f} merged, in bfloat16"
    return f"{size / GIB:,.1f} GiB, or {size / 2 / GIB:,.1f} with publish_dtype bfloat16; publish_mode delta sends what changed"


def _to_start(options: argparse.Namespace, fleet: Fleet) -> Iterator[str]:
    if options.dtype == "float32":
        yield "# before    sed 's/mixed_precision: \"no\"/mixed_precision: bf16/' assets/fsdp2.yml > fsdp2_bf16.yml"
    machines = f"NUM_MACHINES={fleet.machines} MACHINE_RANK=0 MASTER_ADDR=node0 " if fleet.machines > 1 else ""
    precision = " --accelerate_config fsdp2_bf16.yml" if options.dtype == "float32" else ""
    yield f"# start     {machines}tandem run my_run --model MODEL --config plan.yml{precision}"
    yield f"# check     tandem run my_run --model MODEL --config plan.yml --dry-run --assume_gpus {fleet.gpus}"


def _settings(work: Work, plan: GpuPlan) -> Mapping[str, Any]:
    size, first = plan.engine.gpus, 0 if plan.turns else plan.trainer_gpus
    engines = [list(range(first + k * size, first + (k + 1) * size)) for k in range(plan.engines)]
    row, trained, layout = plan.row, work.trained, plan.layout
    trainer: dict[str, Any] = {"max_tokens_per_row": row.tokens, "logprob_chunk": row.logprob_chunk}
    values = {
        "tp_size": (layout.tp, 1),
        "cp_size": (layout.cp, 1),
        "pp_size": (layout.pp, 1),
        "ep_size": (layout.ep, 1),
        "reduce_each_row": (row.reduces_each, False),
        "activation_checkpointing": (row.checkpointing, False),
        "optimizer_offload": (row.optimizer_offload, False),
        "optim": (trained.optim, "adamw"),
        "dtype": (trained.dtype, "float32"),
        "lora_rank": (trained.lora_rank, 0),
        "base_quantization": (trained.base_quantization, "none"),
    }
    trainer |= {name: value for name, (value, default) in values.items() if value != default}
    placed = {"trainer": list(range(plan.trainer_gpus)), "engines": engines}
    return {"launch": {"gpus": {"main": placed}}, "trainer": trainer, "sampler": {"max_tokens": row.tokens}}
