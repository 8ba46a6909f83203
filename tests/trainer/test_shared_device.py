"""A trainer that shares a device: its ranks agree on the device, and use it only while they hold its lease."""

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from shared.documents.states import LeaseState
from shared.processes.mongod import Mongod
from tests.trainer.conftest import launch
from tests.trainer.published import Trained, publish_bridge
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.run.status import live_status
from trainer.settings.config import TrainerConfig
from trainer.step.shared_device import TrainerDevice

T = TypeVar("T")
LEASE, LONG_S, LIMIT_S = "gpu:here", 600.0, 60.0


def launched(mongod: Mongod, folder: Path, *devices: str) -> tuple[int, str]:
    run = f"sharing-{folder.name}"[:60]
    arguments = ["-m", "tests.trainer.sharing_child", run, mongod.connection_string, *devices]
    done = launch("--config_file", "assets/fsdp2.yml", "--num_processes", "2", *arguments, TMPDIR=str(folder))
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("-", "here"), ("here", "-")])
@pytest.mark.thorough
def test_all_ranks_take_turns_if_the_machine_of_one_shares_its_gpus(
    mongod: Mongod, tmp_path: Path, devices: tuple[str, str]
) -> None:
    """As of two machines, one with a single GPU, where trainer and engine take turns."""
    status, output = launched(mongod, tmp_path, *devices)
    assert status == 0, output
    assert "step 0: held attempt 1\nstep 1: held attempt 2\n" in output


@pytest.mark.slow
def test_ranks_that_name_different_devices_are_refused(mongod: Mongod, tmp_path: Path) -> None:
    status, output = launched(mongod, tmp_path, "here", "there")
    assert status != 0
    assert "shared_device differs among the machines of this trainer: here on " in output
    assert "expected one name" in output


@pytest.fixture
def bridge(mongod: Mongod) -> Iterator[StoreBridge]:
    with publish_bridge(mongod) as bridge:
        yield bridge


@pytest.mark.parametrize("cause", ["a resume", "a request"])
def test_weights_are_published_between_steps_only_after_the_engine_sleeps(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path, cause: str
) -> None:
    trained = Trained(bridge, alone, tmp_path, shared_device="here")
    leases = bridge.store.leases
    bridge(leases.occupy(LEASE, "keeper", "http://e", LONG_S, asleep=False))
    before = surviving(trained)
    if cause == "a resume":
        trained.learner.steps_done = 3  # of a checkpoint whose version was never announced
        work: Callable[[], object] = trained.start
    else:
        trained.ask_for_full(0)
        trained.publisher._newest_full = 0
        work = trained.publisher.answer_requests
    publishing = threading.Thread(target=work, daemon=True)
    publishing.start()
    try:
        claimed = awaited(lambda: bridge(leases.claimed(LEASE)))
        assert publishing.is_alive(), "it waits for the engine"
        assert surviving(trained) == before
        assert bridge(leases.confirm(LEASE, "keeper", claimed.attempt))
    finally:
        publishing.join(LIMIT_S)
    assert surviving(trained) == before + 1
    assert bridge(leases.get(LEASE)).state is LeaseState.FREE


def surviving(trained: Trained) -> int:
    """Number of versions, without withdrawals."""
    return sum(version.withdrawn_to is None for version in trained.versions())


def awaited(ask: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + LIMIT_S
    while not (found := ask()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_trainer_says_whose_device_it_waits_for_also_before_it_has_begun(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    """A start without a wait leaves no trace, since it may be refused."""
    config = TrainerConfig(
        run=bridge.store.run,
        db_connection_string="given",
        model_name_or_path=tmp_path,
        output_dir=tmp_path,
        shared_device="here",
    )
    leases = bridge.store.leases

    def doing() -> list[str]:
        return [worker.doing for worker in bridge(bridge.store.workers.all())]

    with live_status(bridge, config, alone):
        pass
    assert doing() == []
    with live_status(bridge, config, alone) as status:
        device = TrainerDevice(bridge, config.sharing, alone, "trainer")
        bridge(leases.occupy(LEASE, "keeper", "http://e", LONG_S, asleep=False))
        work = contextvars.copy_context().run
        loading = threading.Thread(target=work, args=(lambda: held(device),), daemon=True)
        loading.start()
        awaited(
            lambda: [text for text in doing() if "for device here: engines on it are awake: http://e; until" in text]
        )
        claimed = awaited(lambda: bridge(leases.claimed(LEASE)))
        assert bridge(leases.confirm(LEASE, "keeper", claimed.attempt))
        loading.join(LIMIT_S)
        assert status.activity.wait is None


def held(device: TrainerDevice) -> None:
    with device.held():
        pass
