"""What a plan predicts of a rank is what the trainer's own code would hold there, and what was measured on a GPU."""

import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest

from scripts.bench.fake_ranks import TrackedPeak, tracked_step
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import KNOWN
from tandem.plan.planned_rank import PARTS, Layout, TrainedRow
from tandem.plan.rank_memory import moments, peak
from tandem.plan.rank_parameters import published_bytes
from tests.tandem.plan.shapes import ON_AN_H200

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # a busy machine is no failure
GIB = 2**30
FULL, ADAPTERS = TrainedAs(), TrainedAs(lora_rank=16)
CASES: dict[str, tuple[str, Layout, TrainedAs, dict[str, Any]]] = {
    "data": ("Qwen3-1.7B", Layout(ranks=8), FULL, {}),
    "tp_size": ("Qwen3-8B", Layout(ranks=16, tp=4), FULL, {}),
    "cp_size": ("Qwen3-8B", Layout(ranks=64, cp=4), FULL, {"checkpointing": True}),
    "cp_size, few key heads": ("Qwen3-30B-A3B", Layout(ranks=32, cp=8), FULL, {"tokens": 262144}),
    "both": ("Qwen3-32B", Layout(ranks=128, tp=8, cp=4), FULL, {"checkpointing": True}),
    "float32": ("Qwen3-4B", Layout(ranks=8), FULL, {"mixed": False}),
    "bfloat16": ("Qwen3-4B", Layout(ranks=8), TrainedAs(dtype="bfloat16"), {"mixed": False}),
    "muon": ("Qwen3-1.7B", Layout(ranks=8), TrainedAs(optim="muon"), {}),
    "adapters": ("Qwen3-8B", Layout(ranks=8), ADAPTERS, {}),
    "adapters, checkpointing": ("Qwen3-8B", Layout(ranks=8), ADAPTERS, {"checkpointing": True}),
    "experts": ("Qwen3-30B-A3B", Layout(ranks=16), FULL, {"checkpointing": True}),
    "experts, tp_size": ("Qwen3-235B-A22B", Layout(ranks=64, tp=4), FULL, {}),
    "more ranks than experts": ("Qwen3-235B-A22B", Layout(ranks=512), FULL, {"checkpointing": True}),
    "rows": ("Qwen3-8B", Layout(ranks=8), FULL, {"rows": 3}),
    "rows, float32": ("Qwen3-4B", Layout(ranks=8), FULL, {"rows": 2, "mixed": False}),
    "rows, each reduced": ("Qwen3-8B", Layout(ranks=8), FULL, {"rows": 3, "reduces_each": True, "checkpointing": True}),
    "ep_size": ("Qwen3-30B-A3B", Layout(ranks=16, ep=8), FULL, {}),
    "ep_size, checkpointing": ("Qwen3-235B-A22B", Layout(ranks=64, ep=8, cp=4), FULL, {"checkpointing": True}),
    "ep_size, rows": ("Qwen3-235B-A22B", Layout(ranks=512, ep=8), FULL, {"checkpointing": True, "rows": 2}),
    "ep_size, tp_size": ("Qwen3-235B-A22B", Layout(ranks=64, ep=8, tp=4), FULL, {"checkpointing": True}),
    "ep_size, more received": ("Qwen3-30B-A3B", Layout(ranks=16, ep=8), FULL, {"received": 1.5}),
    "ep_size, most received": ("Qwen3-30B-A3B", Layout(ranks=16, ep=8), FULL, {"received": 3.0, "checkpointing": True}),
    "ep_size, fewer received": ("Qwen3-235B-A22B", Layout(ranks=64, ep=8, tp=4), FULL, {"received": 0.5}),
    "experts, short": ("Qwen3-30B-A3B", Layout(ranks=64), FULL, {"tokens": 1024}),
    "experts, tp_size, long": ("Qwen3-30B-A3B", Layout(ranks=16, tp=4), FULL, {"tokens": 65536, "checkpointing": True}),
    "ep_size, tp_size, long": ("Qwen3-30B-A3B", Layout(ranks=16, ep=4, tp=4), FULL, {"tokens": 65536}),
}
DENSE = "Qwen3-8B", 12, Layout(ranks=32, pp=4)  # and its layers
EXPERTS = "Qwen3-235B-A22B", 8, Layout(ranks=64, pp=4, ep=8)
WIDE = "Qwen3-32B", 8, Layout(ranks=64, pp=2, tp=8)
STAGES = {
    "first": (*DENSE, 0, {"rows": 8}),
    "second": (*DENSE, 1, {"rows": 8}),
    "last": (*DENSE, 3, {"rows": 8}),
    "first, few rows": (*DENSE, 0, {"rows": 3}),
    "second, checkpointing": (*DENSE, 1, {"rows": 8, "checkpointing": True}),
    "first, each reduced": (*DENSE, 0, {"rows": 8, "reduces_each": True}),
    "last, each reduced": (*DENSE, 3, {"rows": 8, "reduces_each": True, "checkpointing": True}),
    "experts, first": (*EXPERTS, 0, {"rows": 8}),
    "experts, second, each reduced": (*EXPERTS, 1, {"rows": 8, "reduces_each": True, "checkpointing": True}),
    "experts, last": (*EXPERTS, 3, {"rows": 8, "checkpointing": True}),
    "tp_size, last": (*WIDE, 1, {"tokens": 32768, "rows": 4}),
    "tp_size, first, each reduced": (
        *WIDE, 0, {"tokens": 32768, "rows": 4, "reduces_each": True, "checkpointing": True}
    ),
}  # fmt: skip


def _row(*, tokens: int = 8192, **settings: bool | float) -> TrainedRow:
    return TrainedRow(tokens=tokens, trained_tokens=tokens // 2, **settings)  # type: ignore[arg-type]  # each by name


def _bound(settings: Mapping[str, Any]) -> float:
    """Of a prediction: what is summed after each row is known less well."""
    return 0.04 if "reduces_each" in settings else 0.025


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """One process: `tracked_step` makes a process group of ranks that are not there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", CASES)
def test_the_trainers_own_code_would_hold_what_is_predicted(name: str, elsewhere: ProcessPoolExecutor) -> None:
    model, layout, trained, settings = CASES[name]
    shape = replace(KNOWN[model], layers=3)
    row = _row(**settings)
    tracked: TrackedPeak = elsewhere.submit(tracked_step, shape, layout, trained, row).result()
    predicted = peak(shape, layout, trained, row)
    assert predicted.total == pytest.approx(tracked.total, rel=_bound(settings)), (asdict(predicted), asdict(tracked))
    assert predicted.weights == pytest.approx(tracked.weights, rel=0.02)
    assert predicted.optimizer == pytest.approx(tracked.optimizer, rel=0.02)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_would_hold_what_is_predicted_of_it(name: str, elsewhere: ProcessPoolExecutor) -> None:
    """Layers, rows in flight, and of embedding and head what the stage has."""
    model, layers, layout, stage, settings = STAGES[name]
    shape, row = replace(KNOWN[model], layers=layers), _row(**settings)
    tracked: TrackedPeak = elsewhere.submit(tracked_step, shape, layout, FULL, row, stage).result()
    predicted = peak(shape, layout, FULL, row, stage)
    assert predicted.total == pytest.approx(tracked.total, rel=_bound(settings)), (asdict(predicted), asdict(tracked))
    assert predicted.weights == pytest.approx(tracked.weights, rel=0.02)


def test_the_first_stage_holds_the_rows_that_all_stages_work_on() -> None:
    row = TrainedRow(tokens=8192, trained_tokens=4096, rows=8)
    layout = Layout(ranks=32, pp=4)
    held = [
        max(moment.activations for moment in moments(KNOWN["Qwen3-32B"], layout, FULL, row, stage))
        for stage in range(4)
    ]
    assert held == sorted(held, reverse=True)
    assert held[0] > 3 * held[-1]


@pytest.mark.parametrize(("checkpointing", "measured"), [(False, 27.34), (True, 9.70)])
def test_a_step_on_an_h200_took_what_is_predicted(*, checkpointing: bool, measured: float) -> None:
    """docs/run/gpus.md: what PyTorch allocated; its rows are padded to blocks of 128."""
    row = TrainedRow(tokens=25600, trained_tokens=11520, checkpointing=checkpointing)
    predicted = peak(ON_AN_H200, Layout(ranks=1), FULL, row)
    assert predicted.total / GIB == pytest.approx(measured, rel=0.02)
    assert (predicted.weights + predicted.optimizer) / GIB == pytest.approx(4.59, rel=0.02)


def test_a_sum_is_of_every_part_and_the_peak_is_the_largest_moment() -> None:
    row = TrainedRow(tokens=4096, trained_tokens=2048)
    every = list(moments(KNOWN["Qwen3-8B"], Layout(ranks=8), FULL, row))
    assert all(moment.total == sum(getattr(moment, part) for part in PARTS) > 0 for moment in every)
    assert peak(KNOWN["Qwen3-8B"], Layout(ranks=8), FULL, row).total == max(moment.total for moment in every)


def test_what_is_offloaded_is_on_the_host() -> None:
    row = TrainedRow(tokens=4096, trained_tokens=2048, checkpointing=True)
    for moment in moments(KNOWN["Qwen3-8B"], Layout(ranks=8), FULL, replace(row, optimizer_offload=True)):
        assert (moment.weights, moment.gradients, moment.optimizer) == (0, 0, 0)
        assert moment.host == pytest.approx(16 * KNOWN["Qwen3-8B"].numbers / 8, rel=0.01)
    every = [
        list(moments(KNOWN["Qwen3-8B"], Layout(ranks=8), FULL, one))
        for one in (row, replace(row, activation_offload=True))
    ]
    kept, moved = (max(moment.activations for moment in of_row) for of_row in every)
    assert moved < kept


def test_a_base_of_four_bits_is_whole_on_every_rank() -> None:
    quantized = TrainedAs(lora_rank=16, base_quantization="nf4")
    row = TrainedRow(tokens=1024, trained_tokens=512)
    few, many = (peak(KNOWN["Qwen3-8B"], Layout(ranks=ranks), quantized, row).weights for ranks in (8, 64))
    linear = KNOWN["Qwen3-8B"].layers * sum(m.numbers for m in KNOWN["Qwen3-8B"].layer_matrices() if m.is_linear)
    assert few > many > 0.5625 * linear


@pytest.mark.parametrize(
    ("name", "billions"), [("Qwen3-0.6B", 0.596), ("Qwen3-8B", 8.19), ("Qwen3-32B", 32.8), ("Qwen3-235B-A22B", 235.1)]
)
def test_known_models_have_their_published_sizes(name: str, billions: float) -> None:
    shape = KNOWN[name]
    assert shape.numbers / 1e9 == pytest.approx(billions, rel=0.002)
    assert published_bytes(shape, TrainedAs(dtype="bfloat16")) == 2 * shape.numbers
    assert published_bytes(shape, ADAPTERS) < 0.08 * shape.numbers
