"""The whole loop with real processes: the trained tokens equal the sampled ones."""

import json
import shlex
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.documents.packed import unpack_floats
from shared.documents.trainer_logprobs import TrainerLogprobs
from shared.store import Store
from shared.tasks.files import ImportTarget, import_task_file
from tandem.audit.run import audit
from tests.system.processes import TRAIN_FILE, Run, verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


async def queue_tasks(run: Run, num_generations: int = 4, first: int | None = None) -> None:
    """The bundled tasks, or the `first` of them; the rest may follow by another call."""
    path = TRAIN_FILE if first is None else copy_of(TRAIN_FILE, run.folder, lines=first)
    async with Store.open(run.mongod.connection_string, run.name) as store:
        await import_task_file(store, path, ImportTarget(num_generations=num_generations))


def copy_of(file: Path, folder: Path, *, lines: int) -> Path:
    with file.open() as whole:
        (folder / file.name).write_text("".join(islice(whole, lines)))
    return folder / file.name


KEY = "sk-very-secret"
WITH_A_KEY = {
    "TANDEM_KEEPER_ENGINE_COMMAND": f"{shlex.quote(sys.executable)} -m sampler.engine.local "
    "--model-path {model} --port {port} --api-key {api_key}",
    "TANDEM_KEEPER_ENGINE_API_KEY_VAR": "TESTS_ENGINE_KEY",
    "TANDEM_SAMPLER_ENGINE_API_KEY_VAR": "TESTS_ENGINE_KEY",
    "TESTS_ENGINE_KEY": KEY,
}


async def test_a_run_trains_and_passes_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two processes, deltas, and an engine that demands a key. One process and complete weights:
    test_kills.py, where the engine and the database fail.
    """
    for name, value in WITH_A_KEY.items():
        monkeypatch.setenv(name, value)
    with Run(tmp_path, max_steps=3) as run:
        run.trainer_flags["publish_mode"] = "delta"
        await queue_tasks(run)
        run.start_all(samplers=2, trainer_processes=2)
        assert run.wait("trainer") == 0, run.log("trainer")
        for name in ("sampler0", "sampler1"):
            assert run.end(name) == 0, run.log(name)
        assert not [log.name for log in run.logs() if KEY in log.read_text(errors="replace")]
        async with Store.open(run.mongod.connection_string, run.name) as store:
            for name in await store.database.list_collection_names():
                assert KEY not in str(await store.database[name].find().to_list()), name
        await assert_every_stored_promise_holds(run, published=["full", "full", "delta", "full"])


async def assert_every_stored_promise_holds(run: Run, published: list[str]) -> None:
    """`published`: the kind of each version, from that of step 0 on."""
    steps = list(range(1, len(published)))
    async with Store.open(run.mongod.connection_string, run.name) as store:
        report = await audit(store)
        assert report.ok, report
        versions = await store.versions.all("main")
        assert [v.step for v in versions] == [0, *steps]
        assert [v.kind for v in versions] == published
        trained = await store.data.find({"status": "trained"})
    assert {step for d in trained for step in d.trained_steps} == set(steps)
    lines = [json.loads(line) for line in (run.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == steps
    forwarded = [line for line in lines if line["data/tokens_tree"]]
    await assert_the_stored_log_probs_are_those_of_the_metrics(run, lines)
    assert all(line["data/tokens_tree"] < line["data/tokens_linear"] for line in forwarded)
    shorter = {line["step"] for line in forwarded if line["data/tokens_linear"] < line["data/tokens_flat"]}
    several = [d for d in trained if len(d.dispatches) > 1]  # where every episode has one turn there is nothing to save
    assert shorter == {step for d in several for step in d.trained_steps}
    verify(run)


async def assert_the_stored_log_probs_are_those_of_the_metrics(run: Run, lines: list[dict[str, Any]]) -> None:
    """By step: as many tokens as have a loss, and the mean difference to the engine's log-probs that the trainer reported."""
    differences: dict[int, list[float]] = {line["step"]: [] for line in lines}
    async with Store.open(run.mongod.connection_string, run.name) as store:
        kept = [TrainerLogprobs.from_mongo(one) async for one in store.database["trainer_logprobs"].find()]
        for document in kept:
            turns = {
                turn.turn: turn for turn in (await store.records.dispatches_of([document.record]))[document.record]
            }
            for own in document.turns:
                turn = turns[own.turn]
                assert turn.response is not None
                skipped = own.first - turn.shared_length - len(turn.prompt_ids) // 4
                engine = unpack_floats(turn.response.output_logprobs)[skipped:][: len(own.marks)]
                has_loss = np.frombuffer(own.marks, dtype=np.uint8) > 0
                differences[document.step] += np.abs(unpack_floats(own.logprobs) - engine)[has_loss].tolist()
    for line in lines:
        assert len(differences[line["step"]]) == line["data/tokens_with_loss"], line["step"]
        if differences[line["step"]]:
            mean = float(np.mean(differences[line["step"]]))
            assert mean == pytest.approx(line["loss/mismatch_mean_nats"], rel=1e-3, abs=1e-7)
