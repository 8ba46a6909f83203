"""A temperature that nothing can be trained at is refused in training wherever it enters, and is fine in evaluation."""

import json
from pathlib import Path

import pytest

from sampler.core.episode.dispatch import sampling_params
from sampler.core.errors import UnusableTask
from sampler.settings import SamplerConfig
from shared.errors import ConfigError, DataError
from shared.names import EVAL_SPLIT
from shared.store import Store
from shared.tasks.files import ImportTarget, TaskFileError, import_task_file
from tests.shared.builders import make_task
from tests.trainer.builders import RecordBuilder
from trainer.data.reading import check_temperatures

COLD = (0, 1e-50, 1e-7)
REQUIRED = ["--run=r", "--model_name_or_path=m", "--db_connection_string=mongodb://h"]


@pytest.mark.parametrize("temperature", COLD)
def test_a_setting_is_refused_and_its_evaluation_is_not(temperature: float) -> None:
    with pytest.raises(ConfigError, match=r"temperature is .*greater than or equal to 0.001"):
        SamplerConfig.load([*REQUIRED, f"--temperature={temperature}"])
    assert SamplerConfig.load([*REQUIRED, f"--eval_temperature={temperature}"]).sampling.eval_temperature == temperature


@pytest.mark.parametrize("temperature", COLD)
async def test_a_task_is_refused_by_its_line_in_training_alone(
    store: Store, tmp_path: Path, temperature: float
) -> None:
    path = tmp_path / "tasks.jsonl"
    lines = [
        {"id": "a", "query": "q", "answer": "1"},
        {"id": "b", "query": "q", "answer": "1", "temperature": temperature},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TaskFileError, match=r"tasks.jsonl:2: temperature is .*; expected at least 0.001 in training"):
        await import_task_file(store, path, ImportTarget())
    assert (await import_task_file(store, path, ImportTarget(EVAL_SPLIT))).inserted == 2


def test_a_stored_task_is_unusable_for_the_sampler_in_training_alone() -> None:
    config = SamplerConfig.load([*REQUIRED, "--eval_temperature=0"])
    task = make_task(0)
    cold = task.model_copy(update={"payload": task.payload.model_copy(update={"temperature": 0.0})})
    with pytest.raises(UnusableTask, match=f"task {task.id}: temperature is 0; expected at least 0.001"):
        sampling_params(config, cold, [2])
    assert sampling_params(config, task, [2])["temperature"] == 1.0
    assert sampling_params(config, cold.model_copy(update={"split": EVAL_SPLIT}), [2])["temperature"] == 0.0


def test_a_stored_reply_is_data_that_cannot_be_trained() -> None:
    for trained in (True, False):
        record = RecordBuilder("r")
        record.reply([3, 4], record.context([1, 2]), temperature=0.0, trained=trained)
        if not trained:
            check_temperatures(record.build())
            continue
        with pytest.raises(DataError, match="record r, turn 0: temperature is 0"):
            check_temperatures(record.build())
