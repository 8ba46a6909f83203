"""`tandem plan MODEL --gpus N`: layouts that fit and that a launch takes, by speeds that agree with what was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from shared.errors import ConfigError
from tandem.launch.placement import Wanted, place
from tandem.launch.policies import load_policies
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.devices import DEVICES
from tandem.plan.gpu_command import gpu_plan, is_gpu_plan
from tandem.plan.layouts import GIB, USABLE, Fleet, Given, Work, best, plans, why_none
from tandem.plan.models import KNOWN, shape_of
from tandem.plan.planned_rank import Layout, TrainedRow
from tandem.plan.roofline import TRAINING, engine_speed, row_flops, row_time
from tests.tandem.plan.shapes import ON_AN_H200

FULL, ADAPTERS = TrainedAs(), TrainedAs(lora_rank=16)
H100 = DEVICES["h100"]


def fleet(gpus: int, machines: int = 1, gib: float = 79.6) -> Fleet:
    return Fleet(device=H100, machines=machines, gpus=gpus, memory=USABLE * GIB * gib)


def work(model: str, tokens: int = 8192, trained: TrainedAs = FULL) -> Work:
    row = TrainedRow(tokens=tokens, trained_tokens=tokens // 2)
    return Work(shape=KNOWN[model], trained=trained, row=row, episodes=128)


@pytest.mark.parametrize(("checkpointing", "measured"), [(False, 0.506), (True, 0.651)])
def test_a_row_takes_the_seconds_that_an_h200_took(*, checkpointing: bool, measured: float) -> None:
    """docs/run/gpus.md; 187 million pairs of that tree see each other."""
    row = TrainedRow(tokens=25536, trained_tokens=11520, checkpointing=checkpointing)
    seconds = row_flops(ON_AN_H200, FULL, row, pairs=187_079_136) / (DEVICES["h200"].flops * TRAINING)
    assert seconds == pytest.approx(measured, rel=0.05)


def test_parameters_travel_beside_the_computation_and_lines_within_it() -> None:
    row, shape = TrainedRow(tokens=8192, trained_tokens=4096), KNOWN["Qwen3-8B"]
    near, far = (row_time(shape, Layout(ranks=16), FULL, row, H100, machine) for machine in (16, 8))
    assert far.gather == pytest.approx(near.gather * H100.link / H100.network)
    assert near.lines == 0
    for layout in (Layout(ranks=16, tp=2), Layout(ranks=16, cp=2)):
        shared = row_time(shape, layout, FULL, row, H100, 16)
        assert shared.lines > 0
        assert shared.compute == pytest.approx(near.compute / 2)


def test_the_backward_gathers_a_row_once_more_and_experts_over_ep_size_gather_none() -> None:
    """Collectives of a block with tp_size: two in each of two passes, or of three, and one."""
    plain, again = (TrainedRow(tokens=2**18, trained_tokens=4096, checkpointing=on) for on in (False, True))
    of_plain, of_again = (
        row_time(KNOWN["Qwen3-8B"], Layout(ranks=8, tp=8), FULL, row, H100, 8).lines for row in (plain, again)
    )
    assert of_again / of_plain == pytest.approx(7 / 5)
    mixture = KNOWN["Qwen3-30B-A3B"]
    alone, both, by_layers = (
        row_time(mixture, Layout(ranks=8, tp=tp, ep=ep), FULL, plain, H100, 8).lines
        for tp, ep in ((1, 4), (4, 4), (4, 1))
    )
    assert both - alone / 4 == pytest.approx(by_layers * 5 / 11, rel=0.05), "of an attention, without its experts"


def test_an_engine_has_the_sequences_that_its_memory_holds() -> None:
    shape = KNOWN["Qwen3-8B"]
    engine = engine_speed(shape, 1, 8192, 60 * GIB, H100)
    assert engine.token == 4 * shape.layers * shape.key
    held = engine.weights + engine.sequences * engine.token * 8192
    assert held <= 60 * GIB < held + 4 * GIB
    assert engine_speed(shape, 1, 8192, 10 * GIB, H100).sequences == 0
    assert engine_speed(KNOWN["Qwen3-30B-A3B"], 2, 8192, 60 * GIB, H100).tokens_per_s > 0


@pytest.mark.parametrize(
    ("model", "gpus", "reported"),
    [
        ("Qwen3-235B-A22B", 4, 16.46 * GIB / 367_404),  # SGLang: K and V of so many tokens
        ("Qwen3-235B-A22B", 4, 8.11 * GIB / 178_880),  # vLLM
    ],
)
def test_keys_and_values_take_what_engines_report(model: str, gpus: int, reported: float) -> None:
    """Logs of 4 H100 in vllm-project/vllm issue 21348; the keys and values of the FP8 model are in bfloat16."""
    engine = engine_speed(KNOWN[model], gpus, 4096, 200 * GIB, H100)
    assert engine.token == pytest.approx(reported, rel=0.02)


def test_an_engines_weights_take_what_is_reported() -> None:
    """vLLM on 4 GPUs (issue 17327): 14.2474 GiB each; and the bytes of the model's files."""
    assert engine_speed(KNOWN["Qwen3-30B-A3B"], 4, 4096, 200 * GIB, H100).weights / GIB == pytest.approx(
        14.2474, rel=0.005
    )
    assert 2 * KNOWN["Qwen3-30B-A3B"].numbers == pytest.approx(61_064_216_576, rel=1e-5)
    h20 = Fleet(device=DEVICES["h20"], machines=1, gpus=8, memory=USABLE * GIB * 95.6)
    eight, four = (engine_speed(KNOWN["Qwen3-235B-A22B"], gpus, 32768, h20.memory, h20.device) for gpus in (8, 4))
    assert 8 * eight.weights / 1e9 == pytest.approx(440, rel=0.1), "what 8 H20 were seen to take, in GB or GiB"
    assert eight.sequences > 0 == four.sequences, "on 4 H20 it was out of memory"


@pytest.mark.parametrize(("model", "gpus", "machines"), [("Qwen3-0.6B", 1, 1), ("Qwen3-8B", 8, 1), ("Qwen3-32B", 8, 2)])
def test_what_is_proposed_fits_and_is_a_placement(model: str, gpus: int, machines: int) -> None:
    plan = best(fleet(gpus, machines), work(model), Given())
    assert plan.fits
    assert plan.memory.total <= USABLE * 79.6 * GIB
    assert plan.layout.ranks == plan.trainer_gpus * machines
    assert plan.trainer_gpus + (0 if plan.turns else plan.engines * plan.engine.gpus) <= gpus


def test_memory_decides_and_what_does_not_fit_is_not_proposed() -> None:
    roomy, tight = (best(fleet(8, gib=gib), work("Qwen3-8B", 32768), Given(turns=True)) for gib in (140, 45))
    assert roomy.fits
    assert tight.fits
    assert tight.memory.total < roomy.memory.total
    nothing = best(fleet(8), work("Qwen3-235B-A22B"), Given())
    assert not nothing.fits
    assert "of a machine's own memory" in why_none(nothing), "3.5 TB of states, offloaded"
    assert "holds" in why_none(best(fleet(8), work("Qwen3-235B-A22B"), Given(offload=False)))
    engineless = replace(roomy, engine=replace(roomy.engine, sequences=0))
    assert not engineless.fits
    assert "do not hold its weights" in why_none(engineless)


def test_whole_gradients_that_do_not_fit_are_reduced_after_each_row() -> None:
    """32.8 billion parameters: 122 GiB of them in float32 on each rank of 32, which have four rows each."""
    given = Given(turns=True, tp=1, cp=1, pp=1)
    plan = best(fleet(8, machines=4), work("Qwen3-32B"), given)
    assert plan.row.rows == 4
    assert plan.row.reduces_each
    assert plan.fits
    assert not best(fleet(8, machines=4), work("Qwen3-32B"), replace(given, reduces_each=False)).fits


def test_stages_are_proposed_where_the_network_is_slow_and_their_idle_time_counts() -> None:
    slow = replace(fleet(8, machines=4), device=replace(H100, network=1e9))
    plan = best(slow, replace(work("Qwen3-32B"), episodes=512), Given())
    assert plan.layout.pp > 1
    assert slow.machines % plan.layout.pp == 0
    few, many = (
        best(fleet(8, machines=4), replace(work("Qwen3-32B"), episodes=episodes), Given(turns=True, tp=8, cp=1, pp=4))
        for episodes in (4, 64)
    )
    assert few.learning_s / 4 > 1.5 * many.learning_s / 64, "of 7 rows 3 are idle, then 3 of 67"


def test_a_mixture_is_planned_in_stages_too() -> None:
    every = list(plans(fleet(8, machines=4), work("Qwen3-30B-A3B"), Given(turns=True, tp=1, cp=1, offload=False)))
    assert {(plan.layout.pp, plan.layout.ep) for plan in every} >= {(2, 1), (2, 8), (4, 8)}


def test_experts_over_ep_size_send_tokens_and_gather_less() -> None:
    row, shape = TrainedRow(tokens=8192, trained_tokens=4096, checkpointing=True), KNOWN["Qwen3-235B-A22B"]
    whole, spread = (row_time(shape, Layout(ranks=128, ep=ep), FULL, row, H100, 8) for ep in (1, 8))
    assert spread.gather < 0.2 * whole.gather
    assert spread.lines > whole.lines == 0
    further = row_time(shape, Layout(ranks=128, ep=64), FULL, row, H100, 8)
    assert further.lines > 5 * spread.lines, "beyond a machine tokens take the network"
    assert best(fleet(8, machines=16), work("Qwen3-235B-A22B"), Given()).layout.ep > 1


def test_what_is_given_stays() -> None:
    given = Given(turns=True, tp=2, cp=1, pp=2, reduces_each=True)
    for plan in plans(fleet(8), work("Qwen3-8B"), given):
        assert plan.layout == Layout(ranks=8, tp=2, pp=2)
        assert plan.row.reduces_each
    for plan in plans(fleet(8), work("Qwen3-30B-A3B"), Given(turns=True, ep=4)):
        assert plan.layout.ep == 4
    given = Given(turns=False, trainer_gpus=4, tp=2, cp=1, pp=1, checkpointing=True, offload=False)  # 2 and 6 would do
    for plan in plans(fleet(8), work("Qwen3-8B"), given):
        assert (plan.trainer_gpus, plan.turns, plan.layout) == (4, False, Layout(ranks=4, tp=2))
        assert (plan.row.checkpointing, plan.row.optimizer_offload) == (True, False)


def test_heads_and_experts_bound_the_layouts() -> None:
    for plan in plans(fleet(8), work("Qwen3-30B-A3B"), Given(offload=False)):
        assert KNOWN["Qwen3-30B-A3B"].key_heads % plan.layout.tp == 0
        assert KNOWN["Qwen3-30B-A3B"].heads % (plan.layout.tp * plan.layout.cp) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--gpus", "8", "--trainer", "4"],
        ["--gpus", "8", "--turns"],
        ["--gpus", "16", "--context", "65536", "--lora_rank", "16"],
        ["--gpus", "16", "--turns", "--pp_size", "2", "--reduce_each_row", "true"],
    ],
)
def test_a_launch_takes_the_printed_settings(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu_plan(["Qwen3-8B", *words])
    printed = capsys.readouterr().out
    assert {line.split()[1] for line in printed.splitlines() if line.startswith("# ")} >= {
        "model",
        "trainer",
        "memory",
        "step",
    }
    (tmp_path / "plan.yml").write_text(printed, encoding="utf-8")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(KNOWN["Qwen3-8B"].config()), encoding="utf-8")
    flags = ["--model", str(model), "--config", str(tmp_path / "plan.yml"), "--dry-run", "--assume_gpus", "8"]
    (config,) = load_policies(["planned", *flags])
    assert config.placed is not None
    settings = yaml.safe_load(printed)
    assert list(config.placed.placement.trainer) == settings["launch"]["gpus"]["main"]["trainer"]
    assert [list(engine.gpus) for engine in config.placed.placement.engines] == settings["launch"]["gpus"]["main"][
        "engines"
    ]
    by_turns = {engine.shared_device is not None for engine in config.placed.placement.engines}
    assert by_turns == {("by turns" in printed)}
    assert place(8, [Wanted("main", heads=32)], config.gpus)


def test_a_number_of_gpus_and_a_placement_are_distinguished() -> None:
    assert is_gpu_plan(["Qwen3-8B", "--gpus", "8"])
    assert is_gpu_plan(["Qwen3-8B", "--gpus=8"])
    assert not is_gpu_plan(["my_run", "--gpus", '{"main": {"trainer": [0]}}'])
    assert not is_gpu_plan(["my_run", "--model", "m"])


def test_a_model_that_is_not_known_is_refused_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Qwen3-235B-A22B"):
        shape_of("nobody/knows-this")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="does not say 'num_attention_heads'"):
        shape_of(str(tmp_path))


def test_a_folder_is_read_as_the_model_that_it_describes(tmp_path: Path) -> None:
    for shape in KNOWN.values():
        (tmp_path / "config.json").write_text(json.dumps(shape.config()), encoding="utf-8")
        assert shape_of(str(tmp_path)) == replace(shape, name=tmp_path.name)


def test_a_layout_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="divides 8 key heads"):
        best(fleet(8), work("Qwen3-8B"), Given(tp=3))


def test_machines_of_unequal_size_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a multiple of the 3 machines"):
        gpu_plan(["Qwen3-8B", "--gpus", "16", "--nodes", "3"])
