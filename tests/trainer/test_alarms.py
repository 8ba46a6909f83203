"""Alarms: on where a number means trouble, off where it does not, and always with advice."""

import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from shared.documents.run import Admission
from shared.processes.mongod import Mongod
from tandem.commands.run_status import read_status
from tandem.commands.status_tables import lines_and_tables
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.reporting.alarms import ENTROPY, FIRST_STEPS, RULES, Alarms
from trainer.run.status import live_status
from trainer.settings.config import TrainerConfig

CALM = {
    "loss/k3_mean": 0.001,
    "loss/mismatch_mean_nats": 0.01,
    "loss/ess_fraction": 0.99,
    "loss/clipped_fraction": 0.02,
    "loss/masked_fraction": 0.0,
    "data/zero_variance_fraction": 0.3,
    "learner/skipped_steps": 0.0,
    "selection/duration_ratio": 1.0,
    "selection/tokens_ratio": 0.98,
    "loss/entropy_mean_nats": 1.0,
}


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ("loss/k3_mean", 0.011, "k3"),
        ("loss/mismatch_mean_nats", 0.11, "mismatch"),
        ("loss/ess_fraction", 0.49, "ess"),
        ("loss/clipped_fraction", 0.21, "clip_fraction"),
        ("loss/masked_fraction", 0.3, "masked_fraction"),
        ("data/zero_variance_fraction", 0.9, "zero_variance"),
        ("learner/skipped_steps", 1.0, "skipped"),
        ("selection/duration_ratio", 0.6, "selects_quick"),
        ("selection/tokens_ratio", 0.89, "selects_short"),
    ],
)
def test_each_rule_is_raised_by_its_own_number_with_a_sentence_of_advice(metric: str, value: float, name: str) -> None:
    alarms = Alarms()
    raised, metrics = alarms.check(CALM)
    assert raised == []
    assert metrics == {f"alarm/{rule.name}": 0.0 for rule in RULES}
    (alarm,), metrics = alarms.check({**CALM, metric: value})
    assert alarm.rule.name == name
    assert metrics[f"alarm/{name}"] == 1.0
    assert sum(metrics.values()) == 1.0
    assert metric in str(alarm)
    assert len(alarm.rule.advice.split()) > 6


def test_the_entropy_alarm_compares_with_the_first_steps_also_after_a_resume(tmp_path: Path) -> None:
    history = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "loss/entropy_mean_nats": 1.0 if step else None} for step in range(FIRST_STEPS)]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alarms = Alarms(history)
    assert alarms.check({**CALM, "loss/entropy_mean_nats": 1.0}) == ([], {f"alarm/{r.name}": 0.0 for r in RULES})
    raised, metrics = alarms.check({**CALM, "loss/entropy_mean_nats": 0.49})
    assert [alarm.rule for alarm in raised] == [ENTROPY]
    assert metrics["alarm/entropy"] == 1.0
    assert alarms.check({**CALM, "loss/entropy_mean_nats": 0.51})[0] == []
    for entropy in (0.9, 0.8, 0.7, 0.6, 0.51):  # a slow fall is one too
        assert alarms.check({**CALM, "loss/entropy_mean_nats": entropy})[0] == []
    assert [alarm.rule for alarm in alarms.check({**CALM, "loss/entropy_mean_nats": 0.49})[0]] == [ENTROPY]


def test_status_shows_the_alarms_of_the_trainer_until_they_are_over(mongod: Mongod, alone: Parallel) -> None:
    config = TrainerConfig(run="alarm-test", db_connection_string="given", model_name_or_path=Path("."))
    with StoreBridge(mongod.connection_string, config.run) as bridge:
        try:
            admission = Admission(groups_per_step=1, max_staleness=0)
            bridge(bridge.store.runs.start_trainer(config.policy, admission))
            with live_status(bridge, config, alone) as status:
                status.announce()
                raised, _ = Alarms().check({**CALM, "loss/k3_mean": 0.5})
                for alarms, expected in ((raised, 1), ([], 0)):
                    status.doing("step 1 done", step=1, alarms=[str(alarm) for alarm in alarms])
                    status.doing("step 2", step=1)
                    deadline = time.monotonic() + 60
                    while alarms_told(bridge) != (expected, expected):
                        assert time.monotonic() < deadline, f"{alarms_told(bridge)}, expected {expected} of both"
                        time.sleep(0.1)  # until a heartbeat has told
        finally:
            bridge(bridge.store.client.drop_database(config.run))


def alarms_told(bridge: StoreBridge) -> tuple[int, int]:
    """By the trainer's own document, and by the page."""
    return sum(len(worker.alarms) for worker in bridge(bridge.store.workers.all())), alarms_shown(bridge)


def alarms_shown(bridge: StoreBridge) -> int:
    console = Console(record=True, width=300)
    console.print(*lines_and_tables(bridge(read_status(bridge.store)), every_worker=False), sep="\n")
    return console.export_text().count("alarm trainer loss/k3_mean 0.5 > 0.01: ")


def test_numbers_that_are_missing_raise_nothing() -> None:
    assert Alarms().check({}) == ([], {})


def test_the_alarm_of_one_engine_names_it_and_says_what_the_others_have() -> None:
    def of(engine: str, mismatch: float) -> dict[str, float]:
        area = f"loss_by_engine/{engine}"
        own = {"trained_tokens": 1000.0, "mismatch_mean_nats": mismatch, "k3_mean": 0.0, "staleness_mean_steps": 1.0}
        return {f"{area}/{name}": value for name, value in own.items()}

    raised, metrics = Alarms().check(CALM | of("gpu1:30000", 0.001) | of("gpu2:30000", 0.002))
    assert (raised, metrics["alarm/engine"]) == ([], 0.0)
    (alarm,), metrics = Alarms().check(CALM | of("gpu1:30000", 0.001) | of("gpu2:30000", 0.2))
    assert metrics["alarm/engine"] == 1.0
    start = "loss_by_engine/gpu2:30000/mismatch_mean_nats 0.2 > 0.05: the others' mean is 0.001; "
    assert str(alarm).startswith(start)
    assert "alarm/engine" not in Alarms().check(CALM)[1]
