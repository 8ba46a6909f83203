"""Long-tailed durations on a virtual clock, with the real store, admission and group selection."""

import uuid
from collections.abc import Iterator

import pymongo
import pytest

from scripts.bench.harness import Row
from shared.processes.mongod import Mongod
from tests.system.simulate_staleness import Scenario, simulate
from trainer.settings.data import DataSettings, StaleData

STEPS, GROUPS_PER_STEP, MAX_STALENESS = 16, 4, 1
DEFAULT = str(DataSettings.model_fields["stale_data"].default)


@pytest.fixture
def run(mongod: Mongod) -> Iterator[str]:
    name = f"simulation-{uuid.uuid4().hex[:8]}"
    yield name
    with pymongo.MongoClient(mongod.connection_string) as client:
        client.drop_database(name)


def simulated(mongod: Mongod, run: str, mode: str) -> Row:
    setting = Scenario(StaleData(mode), MAX_STALENESS, STEPS, GROUPS_PER_STEP, sigma=1.0, train=0.3, seed=0)
    return simulate(mongod.connection_string, run, setting)


@pytest.mark.parametrize("mode", [DEFAULT, "wait"])
def test_with_keep_and_wait_the_trained_groups_are_as_slow_as_all(mongod: Mongod, run: str, mode: str) -> None:
    row = simulated(mongod, run, mode)
    assert row["groups"] == STEPS * GROUPS_PER_STEP
    assert (row["set aside %"], row["of slowest %"]) == (0.0, 0.0)
    assert abs(row["apart %"]) < 1e-9
    assert (row["largest"] > MAX_STALENESS) == (mode == DEFAULT)
    assert row["staleness"] < MAX_STALENESS


def test_dropping_stale_groups_selects_against_slow_ones(mongod: Mongod, run: str) -> None:
    """A negative control: the simulation sees what it is there to see."""
    row = simulated(mongod, run, "drop")
    assert row["of slowest %"] > 60.0
    assert row["apart %"] < -20.0
    assert row["largest"] <= MAX_STALENESS
