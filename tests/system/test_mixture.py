"""Three mixed sources with real processes, evaluated in training: each source by its settings, each round by one version."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from shared.evaluation.rounds import evaluation_rounds
from shared.store import Store
from shared.tasks.mix import TasksConfig, import_mix
from tandem.audit.run import Check, audit
from tests.system.processes import ROOT, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIX = ROOT / "assets" / "example" / "mix"
SOURCES: dict[str, dict[str, Any]] = {
    "sums": {"weight": 2, "num_generations": 4, "max_turns": 2, "scorer": "math"},
    "boxes": {"weight": 1, "num_generations": 3, "scorer": "exact_match", "tools": ["box_owner", "favorite_color"]},
    "colors": {"weight": 1, "num_generations": 2, "max_turns": 1, "scorer": "tests_near", "tools": ["favorite_color"]},
}
HELD_OUT = 2  # tasks of each source


def mixture(folder: Path) -> TasksConfig:
    sources = []
    for name, settings in SOURCES.items():
        with (MIX / f"eval_{name}.jsonl").open() as lines:
            (folder / f"eval_{name}.jsonl").write_text("".join(islice(lines, HELD_OUT)))
        held_out = {key: value for key, value in settings.items() if key != "weight"}
        sources.append({"name": name, "file": MIX / f"{name}.jsonl", **settings})
        sources.append({"name": name, "file": folder / f"eval_{name}.jsonl", "split": "eval", **held_out})
    return TasksConfig.model_validate({"sources": sources})


@pytest.mark.thorough
async def test_a_mixture_trains_by_the_settings_of_each_source_and_every_round_is_of_one_version(
    tmp_path: Path,
) -> None:
    with Run(tmp_path, groups_per_step=4, max_steps=2) as run:
        run.sampler_flags["sampler"] = "tests.system.near:Player"
        run.trainer_flags["eval_steps"] = "1"
        async with Store.open(run.mongod.connection_string, run.name) as store:
            await import_mix(store, mixture(tmp_path), policy="main", num_generations=1)
        run.start_tools()
        run.start_keeper()
        run.start_sampler()
        await run.until("the round at version 0", no_round_is_open)
        run.start_trainer()
        assert run.wait("trainer") == 0, run.log("trainer")
        await run.until("the last round", no_round_is_open)
        assert run.end("sampler") == 0, run.log("sampler")
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store, running=True)
            assert report.ok, report
            assert report.results[Check.EVALUATED].examined == 2 * 3 * HELD_OUT * (4 + 3 + 2)
            await check_rounds(store)
            await check_sources(store)
        lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
        logged = [line["eval/step"] for line in lines if "eval/step" in line]
        assert logged in ([0], [0, 1])  # what had ended by then; the rest stands in the documents


async def no_round_is_open(store: Store) -> bool:
    return not await store.evaluation.open_versions("main")


async def check_rounds(store: Store) -> None:
    rounds = await evaluation_rounds(store, "main")
    assert [(played.step, played.complete) for played in rounds] == [(0, True), (1, True), (2, True)]
    for played in rounds:
        assert played.versions == (played.version,)
        assert {name: figures.episodes for name, figures in played.by_source.items()} == {
            name: HELD_OUT * settings["num_generations"] for name, settings in SOURCES.items()
        }
        assert max(played.by_source["sums"].pass_at) == 4


async def check_sources(store: Store) -> None:
    trained = await store.data.find({"status": "trained"})
    assert {data.split for data in trained} == {"train"}
    sizes = {data.source: data.group_size for data in trained}
    assert sizes.keys() == SOURCES.keys()
    assert all(size <= SOURCES[name]["num_generations"] for name, size in sizes.items())
    opened = await store.database["tasks"].find({"split": "train"}, {"source": 1}).sort("seq", 1).to_list(16)
    assert Counter(task["source"] for task in opened) == {"sums": 8, "boxes": 4, "colors": 4}
    records = {record["_id"]: record async for record in store.database["records"].find({"score": {"$ne": None}})}
    for record in records.values():
        assert record["num_turns"] <= SOURCES[record["source"]].get("max_turns", 5)
    assert {r["score"] for r in records.values() if r["source"] != "colors"} <= {0.0, 1.0}
    for record_id, dispatches in (await store.records.dispatches_of(list(records))).items():
        allowed = SOURCES[records[record_id]["source"]].get("tools")
        for call in [call for dispatch in dispatches for call in dispatch.tool_calls]:
            assert allowed is None or call.name in allowed or call.is_error, record_id
