"""Streams over a database with small settled groups, for tests."""

from pathlib import Path

from shared.documents import DBRecordData
from shared.documents.run import Admission
from tests.shared.builders import make_answer, make_data, make_task
from trainer.data.stream import RecordStream
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig

RUN = "stream-test"


def make_config(**fields: object) -> TrainerConfig:
    values = {"run": RUN, "db_connection_string": "given", "model_name_or_path": Path("."), "groups_per_step": 2}
    return TrainerConfig(**{**values, **fields})


def start(bridge: StoreBridge, parallel: Parallel, **fields: object) -> RecordStream:
    config = make_config(**fields)
    admission = Admission(groups_per_step=config.data.groups_per_step, max_staleness=config.data.max_staleness)
    trainer_generation = bridge(bridge.store.runs.start_trainer("main", admission))
    return RecordStream(bridge, config, parallel, trainer_generation=trainer_generation)


def add_groups(bridge: StoreBridge, seqs: range, *, version: int = 0) -> None:
    for seq in seqs:
        task = make_task(seq)
        write(bridge, [make_data(task, k, version=version) for k in range(2)], version=version)


def write(bridge: StoreBridge, group: list[DBRecordData], *, version: int = 0) -> None:
    for data in group:
        bridge(bridge.store.records.open_dispatch(make_answer(data.id, version=version)))
    bridge(bridge.store.data.write_group(group))


def publish(bridge: StoreBridge, steps: range) -> None:
    for step in steps:
        bridge(bridge.store.versions.announce("main", step, f"step-{step}", {}))
