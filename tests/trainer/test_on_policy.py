"""On-policy smoke test: the engine and the trainer agree about every sampled token, so all importance weights are 1."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.tokens.record_tree import RecordTree
from shared.truncation import WHOLE, Truncation
from tests.sampler.engine.local.harness import Server, run_engine, write_model
from tests.trainer.builders import RecordBuilder
from tests.trainer.exactness_table import counts
from trainer.losses import LossConfig
from trainer.process.parallel import Parallel
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.learner import StepResult
from trainer.step.opening import open_learner
from trainer.trees.packing import pack
from trainer.trees.tree import merge

FLOAT_ERROR = 1e-4  # of a float32 ratio; a wrong position is off by far more
TURNS = 3


@pytest.fixture(scope="module")
def engine_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("on-policy") / "model", seed=0)


@pytest.fixture(scope="module")
def records(engine_model: Path) -> Iterator[list[RecordTree]]:
    """A group of three episodes of several turns, one with a rewritten history, sampled by the local engine."""
    with run_engine(engine_model) as server:
        yield [_episode(server, number) for number in range(3)]


@pytest.fixture(scope="module")
def truncated_records(engine_model: Path) -> Iterator[list[RecordTree]]:
    with run_engine(engine_model) as server:
        yield [_episode(server, number, Truncation(top_p=0.9, top_k=30)) for number in range(3)]


def _episode(server: Server, number: int, truncation: Truncation = WHOLE) -> RecordTree:
    builder = RecordBuilder(f"r{number}")
    prompt = [5, 100, 101, 102, 103]
    contexts = {builder.context(prompt): prompt}
    for turn in range(TURNS):
        after, ids = list(contexts.items())[0 if number == 1 else -1]
        temperature = (1.0, 0.7, 1.3)[turn]
        answer = server.generate(ids, 12, temperature=temperature, **truncation.model_dump(exclude_defaults=True))
        logprobs = [logprob for logprob, _, _ in answer["meta_info"]["output_token_logprobs"]]
        last = builder.reply(
            answer["output_ids"],
            after,
            logprobs=logprobs,
            advantage=1.0 - number,
            temperature=temperature,
            truncation=truncation,
        )
        tool = [20 + turn, 30 + number]
        contexts[builder.context(tool, last)] = ids + answer["output_ids"] + tool
    return builder.build()


def step(records: list[RecordTree], engine_model: Path, parallel: Parallel) -> StepResult:
    learner = open_learner(engine_model, LossConfig(), OptimizerConfig(), parallel)
    trees = [merge(records)]
    return learner.step(pack(trees, 60), counts(trees))


def test_same_weights_and_age_zero_give_importance_weights_of_one(
    records: list[RecordTree], engine_model: Path, alone: Parallel
) -> None:
    metrics = step(records, engine_model, alone).metrics
    assert metrics["loss/trained_tokens"] == 3 * TURNS * 12
    assert metrics["loss/ratio_max"] == pytest.approx(1.0, abs=FLOAT_ERROR)
    assert metrics["loss/ratio_min"] == pytest.approx(1.0, abs=FLOAT_ERROR)
    assert metrics["loss/ess_fraction"] == pytest.approx(1.0, abs=FLOAT_ERROR)
    assert metrics["loss/staleness_max_steps"] == 0.0
    assert metrics["loss/clipped_fraction"] == 0.0


def test_truncated_log_probs_agree_too_and_no_token_lies_outside(
    truncated_records: list[RecordTree], engine_model: Path, alone: Parallel
) -> None:
    metrics = step(truncated_records, engine_model, alone).metrics
    assert metrics["loss/ratio_max"] == pytest.approx(1.0, abs=FLOAT_ERROR)
    assert metrics["loss/ratio_min"] == pytest.approx(1.0, abs=FLOAT_ERROR)
    assert metrics["loss/outside_truncation_fraction"] == 0.0


def test_a_truncation_that_the_trainer_does_not_know_of_is_noticed(
    truncated_records: list[RecordTree], records: list[RecordTree], engine_model: Path, alone: Parallel
) -> None:
    """Negative controls: of the records' truncation, and of the share of tokens outside."""
    unknown = [_with(record, WHOLE) for record in truncated_records]
    metrics = step(unknown, engine_model, alone).metrics
    assert metrics["loss/ratio_min"] < 0.95
    assert "loss/outside_truncation_fraction" not in metrics
    narrower = [_with(record, Truncation(top_k=2)) for record in records]
    assert 0.3 < step(narrower, engine_model, alone).metrics["loss/outside_truncation_fraction"] < 1.0


def _with(record: RecordTree, truncation: Truncation) -> RecordTree:
    return dataclasses.replace(
        record, dispatches=tuple(dataclasses.replace(d, truncation=truncation) for d in record.dispatches)
    )


def test_log_probs_that_are_off_by_one_position_are_noticed(
    records: list[RecordTree], engine_model: Path, alone: Parallel
) -> None:
    """Negative control."""
    shifted = []
    for record in records:
        logprobs_N = record.logprobs_N.copy()
        logprobs_N[record.trained_N] = np.roll(logprobs_N[record.trained_N], 1)
        shifted.append(dataclasses.replace(record, logprobs_N=logprobs_N))
    metrics = step(shifted, engine_model, alone).metrics
    assert metrics["loss/ratio_max"] > 1.5
    assert metrics["loss/k3_mean"] > 0.01
