"""Imitating good records is cross entropy on the very ids that were sampled, chosen by rules that say what they left out."""

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.documents import DBRecordData
from shared.errors import ConfigError, DataError
from shared.processes.mongod import Mongod
from shared.tokens.flatten import data_fields, flatten
from shared.truncation import Truncation
from tests.full_disk import room_for
from tests.sampler.builders import make_dispatch
from tests.shared.builders import make_data, make_task
from tests.trainer.builders import RecordBuilder
from trainer.data.images import RecordImages
from trainer.modeling.model import load_model
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.sft import training as sft
from trainer.sft.__main__ import main
from trainer.sft.config import SftConfig
from trainer.sft.records import RecordFilter, Records, choose, imitated

RUN = "sft-records-test"
GIVEN = {"run": RUN, "db_connection_string": "given"}


@pytest.fixture
def bridge(mongod: Mongod) -> Iterator[StoreBridge]:
    with StoreBridge(mongod.connection_string, RUN) as bridge:
        yield bridge
        bridge(bridge.store.client.drop_database(RUN))


def played(bridge: StoreBridge, seq: int, *, reward: float, temperature: float = 1.0, **fields: Any) -> DBRecordData:
    """A stored record of two turns, the second of which rewrites the context of the first: a branch."""
    record = make_task(seq).id + ":0:1"
    sampling = {"sampling_params": {"temperature": temperature}}
    turns = [
        make_dispatch(record, 0, [1, 2, seq % 30], [3, 4, 5], **sampling),
        make_dispatch(record, 1, [6], [7, 8], parent=0, shared_length=4, **sampling),
    ]
    for turn in turns:
        bridge(bridge.store.records.open_dispatch(turn))
    tree = flatten(record, turns, {turn.id: -1.0 for turn in turns})
    data = make_data(make_task(seq), 0).model_copy(update={"reward": reward, **data_fields(tree), **fields})
    bridge(bridge.store.data.write_group([data]))
    return data


def config(mongod: Mongod, model: Path, out: Path, **fields: Any) -> SftConfig:
    values = {"model_name_or_path": model, "run": RUN, "db_connection_string": mongod.connection_string}
    return SftConfig(**{**values, "output_dir": out, "dtype": "float64", "max_steps": 1, **fields})


def test_the_loss_is_cross_entropy_on_the_sampled_ids_of_the_chosen_records(
    bridge: StoreBridge, mongod: Mongod, model_directory: Path, tmp_path: Path, alone: Parallel
) -> None:
    """Token mean, temperature 1, each sampled token once; neither advantages nor records below the score have a part."""
    for seq, reward, temperature in ((0, 1.0, 1.0), (1, 0.5, 1.0), (2, 2.0, 0.6)):
        played(bridge, seq, reward=reward, temperature=temperature)
    settings = config(mongod, model_directory, tmp_path / "out", samples_per_step=2, tokens_per_row=9)
    sft.train(settings, alone)
    (line,) = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    model = load_model(model_directory, dtype="float64")
    sequences = [([1, 2, seq, 3, 4, 5], {3, 4, 5}) for seq in (0, 2)] + [
        ([1, 2, seq, 3, 6, 7, 8], {5, 6}) for seq in (0, 2)
    ]
    terms = []
    for ids, trained in sequences:
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        terms += [-float(logprobs[i - 1, ids[i]]) for i in sorted(trained)]
    assert len(terms) == 2 * 5
    assert line["loss/loss"] == pytest.approx(math.fsum(terms) / len(terms), rel=1e-6)  # norms are float32 in training


def test_a_restart_trains_on_what_was_chosen_and_a_deleted_record_is_named(
    bridge: StoreBridge, tmp_path: Path, alone: Parallel, caplog: pytest.LogCaptureFixture
) -> None:
    played(bridge, 0, reward=1.0)
    wanted = RecordFilter(**GIVEN)
    with caplog.at_level(logging.INFO):
        first = Records(bridge, wanted, tmp_path, alone, 100, RecordImages(bridge, tmp_path))
    assert f"run {RUN}: 1 records chosen, 5 trained tokens" in caplog.text
    (tree,) = first.trees([0])
    assert {dispatch.advantage for dispatch in tree.dispatches} == {1.0}
    played(bridge, 1, reward=1.0)
    again = Records(bridge, wanted, tmp_path, alone, 100, RecordImages(bridge, tmp_path))
    assert len(again) == 1
    assert again.trees([0])[0].record_id == tree.record_id
    bridge(bridge.store.database["record_data"].delete_many({}))
    with pytest.raises(DataError, match=f"records.jsonl: record '{tree.record_id}' is no longer in the run"):
        again.trees([0])


@pytest.mark.parametrize("what", ["full disk", "no folder"])
def test_a_choice_that_cannot_be_written_down_ends_the_program_with_a_message(
    bridge: StoreBridge, mongod: Mongod, model_directory: Path, tmp_path: Path, what: str
) -> None:
    for seq in range(20):
        played(bridge, seq, reward=1.0)
    out = tmp_path / "out"
    if what == "no folder":
        out.touch()
    flags = ["--model_name_or_path", str(model_directory), "--output_dir", str(out), "--run", RUN]
    flags += ["--db_connection_string", mongod.connection_string]
    room = room_for(500 if what == "full disk" else 1 << 30)
    with (
        room,
        pytest.raises(SystemExit, match=r"trainer\.sft: .*records\.jsonl could not be written: .*; free disk space"),
    ):
        main(flags)
    assert not out.is_dir() or not list(out.iterdir())


def data(seq: int, traj: int = 0, **fields: Any) -> DBRecordData:
    return make_data(make_task(seq), traj).model_copy(update=fields)


def test_each_rule_counts_what_it_leaves_out_and_the_newest_come_first() -> None:
    candidates = [
        data(0),
        data(1, reward=0.9),
        data(2, num_trained_tokens=0),
        data(3, num_tokens=99),
        data(4, source="other", reward=0.0),
        data(5, 0, reward=1.5, num_trained_tokens=9),
        data(5, 1, reward=1.5, num_trained_tokens=3),
        data(5, 2, reward=1.0),
        data(6),
    ]
    wanted = RecordFilter(**GIVEN, source=["test"], best_of_group=True, max_records=2)
    chosen = choose(candidates, wanted, max_tokens=50)
    assert [(record.seq, record.num_trained_tokens) for record in chosen.records] == [(6, 2), (5, 3)]
    assert chosen.excluded == {
        "source is not test": 1,
        "score below min_score=1": 1,
        "no trained token": 1,
        "longer than max_tokens=50": 1,
        "not the best of its group": 2,
        "beyond max_records=2": 1,
    }
    assert len(choose(candidates, RecordFilter(**GIVEN, min_score=0.0), max_tokens=100).records) == 8


def test_a_run_without_good_records_is_refused_with_the_counts(
    bridge: StoreBridge, mongod: Mongod, tmp_path: Path, alone: Parallel
) -> None:
    with pytest.raises(ConfigError, match="no record passes: the run has no training data of this policy"):
        Records(bridge, RecordFilter(**GIVEN), tmp_path, alone, 100, RecordImages(bridge, tmp_path))
    played(bridge, 0, reward=0.5)
    with pytest.raises(ConfigError, match="no record passes: 1 score below min_score=1"):
        Records(bridge, RecordFilter(**GIVEN), tmp_path, alone, 100, RecordImages(bridge, tmp_path))
    with (
        pytest.raises(ConfigError, match=r"no run 'no-such-run' at .*; runs there: .*sft-records-test"),
        StoreBridge(mongod.connection_string, "no-such-run", must_exist=True),
    ):
        pass


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "expected either train_file, a JSONL file of conversations, or run"),
        ({"train_file": "a.jsonl", "run": "r", "db_connection_string": "u"}, "expected either train_file"),
        ({"run": "r"}, "db_connection_string\n  Field required"),
        ({"train_file": "a.jsonl", "min_score": 0.5}, "records.run\n  Field required"),
    ],
)
def test_data_comes_from_a_file_or_from_a_run(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        SftConfig(model_name_or_path=tmp_path, output_dir=tmp_path, **fields)


def test_a_truncated_reply_is_trained_in_the_whole_distribution() -> None:
    record = RecordBuilder("r")
    record.reply([3, 4], record.context([1, 2]), temperature=0.7, truncation=Truncation(top_k=2))
    (dispatch,) = imitated(record.build()).dispatches
    assert (dispatch.temperature, dispatch.truncation) == (1.0, Truncation())
